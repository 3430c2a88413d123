"""Samples of recordings: one person in consecutive frames, first observed, then future frames."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchmcl.checks import check_positive_int
from torchmcl.errors import bad_value, nearest_hint
from torchmcl_studies.common import check_known
from torchmcl_studies.data.pedestrians.tracks import RECORDINGS, Recording, read_recordings

__all__ = ["SCENES", "Neighbors", "Split", "Windows", "leave_out", "load", "windows"]


class Neighbors(NamedTuple):
    """Other windows of the scene of each window.

    Attributes:
        rows: Indices of windows, [windows, neighbors]; the window itself as padding.
        mask: Mask of real neighbors, [windows, neighbors]; False for padding.
    """

    rows: Tensor
    mask: Tensor


@dataclass(frozen=True, eq=False)
class Windows:
    """Samples sorted by recording, first frame and person.

    Windows of the same recording and the same first frame are a scene: people who walk at the same time.

    Attributes:
        observed: Observed positions in meters, [windows, observed steps, 2], float32.
        future: Future positions, [windows, future steps, 2]; the last position of a person who leaves is repeated.
        mask: Mask of steps at which the person is present, [windows, future steps]; all True without `partial`.
        scene: Scene numbers, [windows], counted from 0, in order.
        recording: Index of the recording in `recordings`, [windows].
        person: Number of the person in the recording, [windows].
        frame: First frame, [windows].
        recordings: Names of the recordings.
    """

    observed: Tensor
    future: Tensor
    mask: Tensor
    scene: Tensor
    recording: Tensor
    person: Tensor
    frame: Tensor
    recordings: tuple[str, ...]

    def __len__(self) -> int:
        """Return the number of windows."""
        return len(self.scene)

    @property
    def n_scenes(self) -> int:
        """The number of scenes."""
        return int(self.scene[-1]) + 1 if len(self) else 0

    def neighbors(self) -> Neighbors:
        """Return the other windows of the scene of each window, padded to the largest scene.

        People who are present for only a part of the window have no window and are not included; with `partial`, people
        who leave early are included.
        """
        sizes = torch.bincount(self.scene, minlength=self.n_scenes)
        first = (sizes.cumsum(0) - sizes)[self.scene].unsqueeze(-1)  # [windows, 1]
        rows = torch.arange(len(self)).unsqueeze(-1)
        places = torch.arange(max(int(sizes.max()) - 1, 0) if len(self) else 0)
        index = first + places
        index = index + (index >= rows).long()  # exclude the window itself
        mask = places < sizes[self.scene].unsqueeze(-1) - 1
        return Neighbors(torch.where(mask, index, rows), mask)


def windows(
    recordings: Recording | Sequence[Recording],
    *,
    observed: int = 8,
    future: int = 12,
    stride: int = 1,
    partial: bool = False,
) -> Windows:
    """Return every sample of the recordings: one person in `observed + future` consecutive frames.

    Consecutive frames are one step of the recording apart: a window never crosses a gap in the frames of a person.

    Args:
        recordings: One recording, or several with the same frame step.
        observed: Number of observed steps.
        future: Number of future steps.
        stride: Number of steps between first frames, counted from the first frame of a recording, so that people of a
            scene stay together.
        partial: Whether to include people who leave before the window ends, after at least one future step; see
            `Windows.mask`.

    Raises:
        ValueError: If a number is below 1, there is no recording, or recordings differ in their frame step.

    Example:
        >>> rows = np.array([[frame, 1, 0.4 * frame, 0.0] for frame in range(5)])
        >>> samples = windows(Recording.from_rows(rows), observed=2, future=2)
        >>> samples.future[:, :, 0]
        tensor([[0.8000, 1.2000],
                [1.2000, 1.6000]])
    """
    for argument, value in (("observed", observed), ("future", future), ("stride", stride)):
        check_positive_int("pedestrians.windows", argument, value)
    chosen = [recordings] if isinstance(recordings, Recording) else list(recordings)
    _check_one_step(chosen)
    parts = [_windows_of(recording, observed, future, stride, partial) for recording in chosen]
    positions, mask, person, frame = (np.concatenate(column) for column in zip(*parts, strict=True))
    number = np.repeat(np.arange(len(parts)), [len(part[-1]) for part in parts])
    track = torch.from_numpy(positions.astype(np.float32))
    return Windows(
        observed=track[:, :observed].contiguous(),
        future=track[:, observed:].contiguous(),
        mask=torch.from_numpy(mask),
        scene=torch.from_numpy(_numbered(number, frame)),
        recording=torch.from_numpy(number),
        person=torch.from_numpy(person),
        frame=torch.from_numpy(frame),
        recordings=tuple(recording.name for recording in chosen),
    )


def leave_out(samples: Windows, *names: str) -> tuple[Windows, Windows]:
    """Return the windows without the named recordings, and the windows of those recordings.

    Hyperparameters such as training length and temperature that are selected on held-out training recordings are
    independent of the test scene.

    Args:
        samples: Windows of several recordings, for example the training part of a split.
        names: Names of the recordings to hold out. Hold out all recordings of a location together.

    Returns:
        The other windows and the held-out ones, with renumbered scenes.

    Raises:
        ValueError: If there are no names, a name is unknown, or no recordings would be left.

    Example:
        >>> rows = np.array([[frame, 1, 0.4 * frame, 0.0] for frame in range(5)])
        >>> both = windows([Recording.from_rows(rows, name) for name in ("street", "square")], observed=2, future=2)
        >>> rest, held_out = leave_out(both, "square")
        >>> rest.recordings, held_out.recordings, len(held_out)
        (('street',), ('square',), 2)
    """
    owner = "pedestrians.leave_out"
    for name in names:
        if name not in samples.recordings:
            advice = nearest_hint(str(name), samples.recordings).strip()
            rule = f"be among {', '.join(samples.recordings)}"
            raise ValueError(bad_value(owner, "names", rule, repr(name), advice))
    rest = set(samples.recordings) - set(names)
    if not names or not rest:
        rule = f"be some but not all of {', '.join(samples.recordings)}"
        raise ValueError(bad_value(owner, "names", rule, "all" if names else "none"))
    return _of_recordings(samples, rest), _of_recordings(samples, set(names))


def _check_one_step(recordings: list[Recording]) -> None:
    if not recordings:
        raise ValueError(bad_value("pedestrians.windows", "recordings", "hold at least one recording", "none"))
    first = recordings[0]
    for other in recordings[1:]:
        if other.step != first.step:
            got = f"{first.step} in {first.name} and {other.step} in {other.name}"
            advice = "Resample one of them: a step must have the same duration in all recordings."
            rule = "have the same frame step"
            raise ValueError(bad_value("pedestrians.windows", "recordings", rule, got, advice))


def _windows_of(
    recording: Recording, observed: int, future: int, stride: int, partial: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return positions [windows, steps, 2], mask, person and first frame of one recording, sorted."""
    frames, persons = recording.frames, recording.persons
    n_rows, length = len(frames), observed + future
    breaks = (np.diff(persons) != 0) | (np.diff(frames) != recording.step)
    ends = np.append(np.flatnonzero(breaks), n_rows - 1)  # the last row of each contiguous run
    run = np.concatenate([[0], np.cumsum(breaks)])
    left = ends[run] - np.arange(n_rows) + 1  # number of remaining rows of the run
    fits = left >= (observed + 1 if partial else length)
    on_stride = (frames - frames.min()) // recording.step % stride == 0
    starts = np.flatnonzero(fits & on_stride)
    starts = starts[np.lexsort((persons[starts], frames[starts]))]
    steps, left = np.arange(length), left[starts, None]
    positions = recording.positions[starts[:, None] + np.minimum(steps, left - 1)]
    return positions, steps[observed:] < left, persons[starts], frames[starts]


def _numbered(recording: np.ndarray, frame: np.ndarray) -> np.ndarray:
    """Return the scene number of each window; windows must be sorted by recording and frame."""
    if not len(frame):
        return np.zeros(0, dtype=np.int64)
    changes = (np.diff(recording) != 0) | (np.diff(frame) != 0)
    return np.concatenate([[0], np.cumsum(changes)]).astype(np.int64)


def _of_recordings(samples: Windows, names: set[str]) -> Windows:
    kept = [index for index, name in enumerate(samples.recordings) if name in names]
    rows = torch.isin(samples.recording, torch.tensor(kept))
    recording = torch.searchsorted(torch.tensor(kept), samples.recording[rows])
    frame = samples.frame[rows]
    return Windows(
        observed=samples.observed[rows],
        future=samples.future[rows],
        mask=samples.mask[rows],
        scene=torch.from_numpy(_numbered(recording.numpy(), frame.numpy())),
        recording=recording,
        person=samples.person[rows],
        frame=frame,
        recordings=tuple(samples.recordings[index] for index in kept),
    )


# The test recordings of each scene. All others are used for training, including those that are never tested
# (uni_examples, crowds_zara03) and those of the same location.
SCENES = {
    "eth": ("biwi_eth",),
    "hotel": ("biwi_hotel",),
    "univ": ("students001", "students003"),
    "zara1": ("crowds_zara01",),
    "zara2": ("crowds_zara02",),
}


class Split(NamedTuple):
    """One split of the benchmark.

    Attributes:
        train: First parts of all recordings except the recordings of the scene.
        validation: Last parts of the same recordings.
        test: Whole recordings of the scene.
    """

    train: Windows
    validation: Windows
    test: Windows


def load(
    scene: str,
    root: str | Path | None = None,
    *,
    observed: int = 8,
    future: int = 12,
    partial: bool = False,
) -> Split:
    """Return the windows of a split of ETH and UCY: training on all other recordings, test on the scene.

    Args:
        scene: Name of the scene: eth, hotel, univ, zara1 or zara2.
        root: Folder that contains all/, train/ and val/; see `read_recordings`.
        observed: Number of observed steps of 0.4 s.
        future: Number of future steps.
        partial: Whether to include people who leave before the window ends; see `windows`.

    Raises:
        ValueError: If the scene is unknown, or a file is not a recording.
        OSError: If the files are missing and cannot be downloaded.

    Reference:
        Pellegrini et al., ICCV 2009 (ETH); Lerner et al., Eurographics 2007 (UCY). The parts are distributed with
        Trajectron++ (Salzmann et al., ECCV 2020).
    """
    check_known("pedestrians.load", "scene", [scene], SCENES)
    others = [name for name in RECORDINGS if name not in SCENES[scene]]
    parts = (("train", others), ("val", others), ("all", SCENES[scene]))
    recordings = (read_recordings(names, part, root) for part, names in parts)
    return Split(*(windows(read, observed=observed, future=future, partial=partial) for read in recordings))
