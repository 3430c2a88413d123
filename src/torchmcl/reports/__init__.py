"""Reports: tables, figures and pages made from records, never from a model."""
