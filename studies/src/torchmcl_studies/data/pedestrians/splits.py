"""The five splits of the benchmark: each leaves one scene out for the test."""

from pathlib import Path
from typing import NamedTuple

from torchmcl_studies.common import check_known
from torchmcl_studies.data.pedestrians.files import RECORDINGS, read_recordings
from torchmcl_studies.data.pedestrians.samples import Windows, windows

__all__ = ["SCENES", "Split", "load"]

# The recordings that each scene is tested on. The others are trained on, also those that are never tested
# (uni_examples, crowds_zara03) and those of the same place.
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
        train: the first parts of all recordings but those of the scene.
        validation: the last parts of the same recordings.
        test: the whole recordings of the scene.
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
        scene: eth, hotel, univ, zara1 or zara2.
        root: the folder with all/, train/ and val/; see `read_recordings`.
        observed: steps that are known, of 0.4 s.
        future: steps to come.
        partial: also people who leave before the window ends; see `windows`.

    Raises:
        ValueError: for an unknown scene, or a file that is not a recording.
        OSError: if the files are absent and cannot be downloaded.

    Reference:
        Pellegrini et al., ICCV 2009 (ETH); Lerner et al., Eurographics 2007 (UCY). The parts are those
        distributed with Trajectron++ (Salzmann et al., ECCV 2020).
    """
    check_known("pedestrians.load", "scene", [scene], SCENES)
    others = [name for name in RECORDINGS if name not in SCENES[scene]]
    parts = (("train", others), ("val", others), ("all", SCENES[scene]))
    recordings = (read_recordings(names, part, root) for part, names in parts)
    return Split(*(windows(read, observed=observed, future=future, partial=partial) for read in recordings))
