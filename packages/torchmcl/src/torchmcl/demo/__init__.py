"""The demonstration: three Gaussians, its page and film, and the interactive page."""
