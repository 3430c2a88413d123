"""Reports: tables, figures and pages made from records, never from a model."""

from torchmcl.reports import film, moving_picture, numbers, page, pictures, play_page

__all__ = ["film", "moving_picture", "numbers", "page", "pictures", "play_page"]
