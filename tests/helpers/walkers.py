"""A tiny made-up folder of recordings in the layout of ETH/UCY: people who walk and turn."""

import numpy as np

from torchmcl_studies.data.pedestrians import RECORDINGS


def write_walkers(folder, n_people=4, n_frames=24, seed=0):
    """Write all/ and train/ for each of the eight recordings."""
    generator = np.random.default_rng(seed)
    for part, ending in (("all", ""), ("train", "_train")):
        (folder / part).mkdir(parents=True, exist_ok=True)
        for name in RECORDINGS:
            rows = []
            for person in range(n_people):
                turns = generator.normal(0, 0.1, n_frames).cumsum()
                steps = 0.5 * np.stack([np.cos(turns), np.sin(turns)], axis=-1)
                path = generator.uniform(-3, 3, 2) + steps.cumsum(axis=0)
                rows += [f"{10 * i} {person} {x:.3f} {y:.3f}" for i, (x, y) in enumerate(path)]
            (folder / part / f"{name}{ending}.txt").write_text("\n".join(rows) + "\n")
    return folder
