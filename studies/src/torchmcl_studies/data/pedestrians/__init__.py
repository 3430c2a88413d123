"""Pedestrian trajectories (ETH and UCY): recordings, windows of 8 observed and 12 future steps, and splits.

Example:
    >>> from torchmcl_studies.data import pedestrians
    >>> split = pedestrians.load("eth")  # doctest: +SKIP
    >>> split.test.observed.shape, split.test.future.shape  # doctest: +SKIP
    (torch.Size([364, 8, 2]), torch.Size([364, 12, 2]))
"""

from torchmcl_studies.data.pedestrians.samples import SCENES, Neighbors, Split, Windows, leave_out, load, windows
from torchmcl_studies.data.pedestrians.tracks import RECORDINGS, Recording, read, read_recordings

__all__ = [
    "RECORDINGS",
    "SCENES",
    "Neighbors",
    "Recording",
    "Split",
    "Windows",
    "leave_out",
    "load",
    "read",
    "read_recordings",
    "windows",
]
