"""Walking people seen from above (ETH and UCY): recordings, windows of 8 observed and 12 future steps, and splits.

Example:
    >>> from torchmcl.data import pedestrians
    >>> split = pedestrians.load("eth")  # doctest: +SKIP
    >>> split.test.observed.shape, split.test.future.shape  # doctest: +SKIP
    (torch.Size([364, 8, 2]), torch.Size([364, 12, 2]))
"""

from torchmcl.data.pedestrians.files import RECORDINGS, read_recordings
from torchmcl.data.pedestrians.samples import Neighbours, Windows, leave_out, windows
from torchmcl.data.pedestrians.splits import SCENES, Split, load
from torchmcl.data.pedestrians.tracks import Recording, read

__all__ = [
    "RECORDINGS",
    "SCENES",
    "Neighbours",
    "Recording",
    "Split",
    "Windows",
    "leave_out",
    "load",
    "read",
    "read_recordings",
    "windows",
]
