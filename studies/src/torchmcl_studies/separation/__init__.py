"""The paper's study of speech separation: its training runs, their records and the published numbers."""
