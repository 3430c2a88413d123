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


def check_same_sets(found, expected, share=0.98):
    """Check the ends of sets to 1e-5 in nearly all rows: a peak as high as the level may or may not be a piece."""
    n_pieces = expected.lower.shape[-1]
    assert np.isnan(found["lower"][..., n_pieces:]).all()
    wrong = np.zeros(len(expected.lower), dtype=bool)
    for name in ("lower", "upper"):
        ends = getattr(expected, name)
        got = np.full(ends.shape, np.nan)
        got[..., : found[name].shape[-1]] = found[name][..., :n_pieces]
        close = np.isclose(got, ends, rtol=1e-5, atol=1e-5 * np.nanmedian(np.abs(ends)), equal_nan=True)
        wrong |= ~close.reshape(len(wrong), -1).all(axis=1)
    assert wrong.sum() <= (1 - share) * len(wrong)


def check_same_points(found, expected, share=0.98):
    """Check points and masses [rows, points] to 1e-5 in nearly all rows: two optima may be equally good."""
    (points, masses), (wanted, shares) = found, expected
    spread = np.sqrt((shares * (wanted - (shares * wanted).sum(-1, keepdims=True)) ** 2).sum(-1, keepdims=True))
    wrong = np.abs(points - wanted) > 1e-5 * (spread + np.abs(wanted))
    wrong |= np.abs(masses - shares) > 1e-5
    assert wrong.any(axis=1).mean() <= 1 - share


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
