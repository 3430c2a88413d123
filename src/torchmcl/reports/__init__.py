"""Reports: tables, figures and pages made from records, never from a model."""

from torchmcl.reports import film, page, pictures

__all__ = ["film", "page", "pictures"]
