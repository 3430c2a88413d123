"""The demonstration: three Gaussians, a page with animations, and the interactive page."""
