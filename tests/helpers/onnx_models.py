"""Exported estimators in onnxruntime, and what their answers must satisfy by definition."""

import numpy as np
import pytest
from scipy.special import ndtr


def run(path, feeds, outputs=None):
    """Return the outputs of a file by name, or some of them alone."""
    session = pytest.importorskip("onnxruntime").InferenceSession(path)
    names = outputs or [one.name for one in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def check_same(got, expected):
    """Check answers to 1e-5 of their size."""
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5 * np.nanstd(np.asarray(expected, float)))


def check_means_of_cells(points, masses, kernels):
    """Check that points [rows, points] are the means of their cells; kernels are values, shares and widths."""
    values, shares, widths = (each[:, None] for each in kernels)
    middle = (points[:, 1:] + points[:, :-1]) / 2
    ends = np.concatenate([np.full_like(points[:, :1], -1e9), middle, np.full_like(points[:, :1], 1e9)], axis=1)
    z = (ends[..., None] - values) / widths
    below = (shares * ndtr(z)).sum(-1)
    first = (shares * (values * ndtr(z) - widths * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi))).sum(-1)
    own = np.diff(below, axis=1)
    np.testing.assert_allclose(masses, own, atol=1e-5)
    heavy = own > 1e-6
    np.testing.assert_allclose(points[heavy], (np.diff(first, axis=1) / np.maximum(own, 1e-12))[heavy], atol=1e-5)
