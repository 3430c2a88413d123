"""The paper's UCI study: its methods, under three protocols, on the official folds."""
