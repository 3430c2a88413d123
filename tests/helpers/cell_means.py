"""Definition of best points: each is the mean of its cell."""

import numpy as np
from scipy.special import ndtr


def check_means_of_cells(points, masses, kernels, atol=1e-5):
    """Check that points [rows, points] are the means of their cells; kernels are values, shares and widths."""
    values, shares, widths = (each[:, None] for each in kernels)
    middle = (points[:, 1:] + points[:, :-1]) / 2
    ends = np.concatenate([np.full_like(points[:, :1], -1e9), middle, np.full_like(points[:, :1], 1e9)], axis=1)
    z = (ends[..., None] - values) / widths
    below = (shares * ndtr(z)).sum(-1)
    first = (shares * (values * ndtr(z) - widths * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi))).sum(-1)
    own = np.diff(below, axis=1)
    np.testing.assert_allclose(masses, own, atol=atol)
    heavy = own > 1e-6
    np.testing.assert_allclose(points[heavy], (np.diff(first, axis=1) / np.maximum(own, 1e-12))[heavy], atol=atol)
