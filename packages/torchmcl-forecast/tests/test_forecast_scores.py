"""Scores of paths against plain loops."""

import numpy as np
import torch

from torchmcl_forecast.scores import path_scores, variogram_score


def test_the_variogram_score_is_that_of_a_loop():
    rng = np.random.default_rng(0)
    paths, truth = rng.normal(size=(9, 4)), rng.normal(size=4)
    total = 0.0
    for i in range(4):
        for j in range(4):
            total += (abs(truth[i] - truth[j]) ** 0.5 - np.mean(np.abs(paths[:, i] - paths[:, j]) ** 0.5)) ** 2
    np.testing.assert_allclose(variogram_score(torch.from_numpy(paths), torch.from_numpy(truth)), total / 12)


def test_the_energy_score_is_that_of_a_loop_and_leaves_out_missing_steps():
    rng = np.random.default_rng(0)
    paths, truth = rng.normal(size=(1, 8, 1, 4)), rng.normal(size=(1, 1, 4))
    truth[0, 0, 2] = np.nan
    known = [0, 1, 3]
    one = paths[0, :, 0][:, known]
    near = np.linalg.norm(one - truth[0, 0, known], axis=1).mean()
    apart = np.linalg.norm(one[:, None] - one[None], axis=-1).mean()
    found = path_scores(torch.from_numpy(paths), torch.from_numpy(truth))["energy"]
    np.testing.assert_allclose(found, (near - apart / 2) / np.sqrt(3))
