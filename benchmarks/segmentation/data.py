"""Reduce the images and annotations of BSDS500 to one small file for `segmentation.py`.

The images belong to their authors and are not part of this repository. From a clone of github BIDS/BSDS500:

    python -m benchmarks.segmentation.data path/to/BSDS500 out/bsds.npz
"""

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

# 481 x 321 becomes 96 x 64: the scale at which a window of 64 pixels covers most of a picture.
REDUCTION, LONG, SHORT = 5, 96, 64
MOST = 9  # annotators of a picture
SPLITS = ("train", "val", "test")


def reduced_labels(labels: NDArray[np.integer]) -> NDArray[np.uint8]:
    """Return the region of the center of each block of pixels, numbered from 1 in the order of the original numbers.

    A mean of numbers would be a region that nobody drew.
    """
    half = REDUCTION // 2
    centers = labels[half::REDUCTION, half::REDUCTION][: _side(labels.shape[0]), : _side(labels.shape[1])]
    _, numbers = np.unique(centers, return_inverse=True)
    if numbers.max() > 254:
        raise ValueError(f"reduced_labels: `labels` must have at most 255 regions, got {numbers.max() + 1}.")
    return (numbers.reshape(centers.shape) + 1).astype(np.uint8)


def reduced_picture(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the mean color of each block of pixels."""
    height, width = _side(picture.shape[0]), _side(picture.shape[1])
    blocks = picture[: height * REDUCTION, : width * REDUCTION].reshape(height, REDUCTION, width, REDUCTION, 3)
    return np.rint(blocks.mean(axis=(1, 3))).astype(np.uint8)


def _side(pixels: int) -> int:
    return LONG if pixels > 400 else SHORT


def lying(values: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a picture or a map with its long side as rows' length: upright ones are transposed."""
    return values if values.shape[0] < values.shape[1] else values.swapaxes(0, 1)


def annotated(folder: Path, split: str) -> dict[str, NDArray[np.uint8]]:
    """Return the arrays of one split: images, label maps (0 for missing annotators), and flags of transposed images."""
    import scipy.io
    from PIL import Image

    pictures, labels, upright = [], [], []
    for path in sorted((folder / "images" / split).glob("*.jpg")):
        picture = reduced_picture(np.asarray(Image.open(path).convert("RGB")))
        found = scipy.io.loadmat(folder / "groundTruth" / split / f"{path.stem}.mat")["groundTruth"][0]
        maps = np.zeros((MOST, SHORT, LONG), dtype=np.uint8)
        for place, annotation in zip(maps, found, strict=False):
            place[:] = lying(reduced_labels(annotation["Segmentation"][0, 0]))
        pictures.append(lying(picture))
        labels.append(maps)
        upright.append(picture.shape[0] > picture.shape[1])
    arrays = {"pictures": pictures, "labels": labels, "upright": upright}
    return {f"{split}_{name}": np.array(values, dtype=np.uint8) for name, values in arrays.items()}


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("clone", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--splits", nargs="+", choices=SPLITS, default=list(SPLITS))
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, NDArray[np.uint8]] = {}
    for split in options.splits:
        arrays |= annotated(options.clone / "BSDS500" / "data", split)
        print(split, len(arrays[f"{split}_pictures"]), "pictures", flush=True)
    np.savez_compressed(options.out, **arrays)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
