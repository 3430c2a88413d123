"""The demonstration: three Gaussians, its page and film, and the page to play with."""
