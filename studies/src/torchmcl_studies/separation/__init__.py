"""The paper's study of speech separation: its trainings, their records and its published numbers."""
