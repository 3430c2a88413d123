"""Search by brute force: candidates are trained side by side and compared on held-out rows."""

import pytest
import torch

import torchmcl as mcl
from plain_loop import rows, small_mlp
from torchmcl.annealing import AutoAnnealing
from torchmcl_fleet import Candidate, FleetSearch


def test_no_batch_of_a_search_is_left_with_a_few_rows():
    inputs, targets = rows(50, seed=0)  # five are held out; twice 22 of the others would leave one
    search = FleetSearch([Candidate("MCL", mcl.WTA())])
    uneven, even = (search.run(small_mlp, inputs, targets, 2, batch_size=size).values for size in (22, 15))
    assert torch.equal(uneven, even)
    with pytest.raises(ValueError, match="`at_most` must be"):
        search.run(small_mlp, inputs, targets, 2, batch_size=0)


def test_the_search_finds_the_way_that_learns():
    inputs, targets = rows(60, seed=0)
    candidates = [Candidate("frozen", mcl.WTA(), learning_rate=0.0), Candidate("auto", AutoAnnealing())]
    search = FleetSearch(candidates, n_splits=3, held_out=0.2, n_restarts=2)
    trials = search.run(small_mlp, inputs, targets, 60)
    assert trials.candidates[trials.best].name == "auto"
    assert trials.values.shape == (2, 3, 2)
    assert trials.means[1] < trials.means[0]
    records = trials.records()
    assert len(records) == 12
    assert records[0].keys() == {"candidate", "split", "restart", "distortion"}


def test_a_candidate_that_fails_is_not_chosen():
    inputs, targets = rows(40, seed=0)
    candidates = [
        Candidate("explodes", mcl.WTA(), learning_rate=1e30),
        Candidate("learns", mcl.WTA(), learning_rate=0.01),
    ]
    with pytest.warns(RuntimeWarning, match="not finite"):
        trials = FleetSearch(candidates).run(small_mlp, inputs, targets, 8, validate_every=1)
    assert trials.candidates[trials.best].name == "learns"
