"""`MCLModule` with the loaders that people have: every form of a batch, through fit, validate, test and predict."""

import functools
import warnings

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import torchmcl as mcl
from grids import for_each
from torchmcl.types import as_batch, collate_batches

pytest.importorskip("lightning.pytorch")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import lightning.pytorch as pl

    from lightning_program import QUIET
    from torchmcl.lightning import MCLModule

pytestmark = pytest.mark.filterwarnings("ignore")
N = 10
# Seeded: Adam's first steps are signs of gradients, which rounding turns in some draws.
X, Y = torch.randn(N, 5, generator=torch.Generator().manual_seed(0)).split((3, 2), dim=1)
FULL, MASK = Y.unsqueeze(1), torch.ones(N, 1, dtype=torch.bool)
FORMS = {
    "tuples without the axis of targets": TensorDataset(X, Y),
    "tuples": TensorDataset(X, FULL),
    "tuples with a mask": TensorDataset(X, FULL, MASK),
    "batches without a mask": [mcl.Batch(x, y) for x, y in zip(X, FULL, strict=True)],
    "batches without a mask or an axis": [mcl.Batch(x, y) for x, y in zip(X, Y, strict=True)],
    "batches": [mcl.Batch(x, y, m) for x, y, m in zip(X, FULL, MASK, strict=True)],
    "batches of which some have a mask": [
        mcl.Batch(x, y, m if i % 2 else None) for i, (x, y, m) in enumerate(zip(X, FULL, MASK, strict=True))
    ],
    "dictionaries": [{"inputs": x, "targets": y} for x, y in zip(X, Y, strict=True)],
}


def module(out_features=2, **options):
    torch.manual_seed(0)
    return MCLModule(mcl.MultiHypothesisMLP(3, out_features, 4, hidden=(8,)), mcl.AnnealedWTA(0.5), **options)


def trainer():
    return pl.Trainer(max_epochs=1, enable_checkpointing=False, **QUIET)


def run(dataset, **options):
    """Return the weights after a training, the metrics of both evaluations and the predictions."""
    loader, trained = DataLoader(dataset, batch_size=4), module(**options)
    trainer().fit(trained, loader, loader)
    validated = trainer().validate(trained, loader, verbose=False)[0]
    tested = trainer().test(trained, loader, verbose=False)[0]
    predicted = trainer().predict(trained, loader)
    hypotheses = torch.cat([predictions.hypotheses for predictions in predicted])
    return dict(trained.model.state_dict()), validated["val_distortion"], tested["test_distortion"], hypotheses


@functools.cache
def plain_batches():
    return run(FORMS["batches"])


@for_each("form", [form for form in FORMS if form != "batches"])
def test_every_form_of_a_batch_trains_the_same_model(form):
    torch.testing.assert_close(run(FORMS[form]), plain_batches())


def test_class_ids_need_no_axis_of_targets():
    ids = torch.randint(0, 2, (N,))
    options = {"cost_fn": mcl.pairwise_cross_entropy}
    torch.testing.assert_close(
        run(TensorDataset(X, ids), **options), run(TensorDataset(X, ids.unsqueeze(-1)), **options)
    )


def test_numbers_are_targets_of_one_dimension():
    numbers = torch.randn(N)
    expected = run(TensorDataset(X, numbers[:, None, None]), out_features=1)
    for targets in (numbers, numbers[:, None]):
        torch.testing.assert_close(run(TensorDataset(X, targets), out_features=1), expected)


@for_each("dataset", [X, TensorDataset(X), [(x,) for x in X]])
def test_predictions_need_no_targets(dataset):
    trained = module()
    predicted = trainer().predict(trained, DataLoader(dataset, batch_size=4))
    with torch.no_grad():
        torch.testing.assert_close(torch.cat([p.hypotheses for p in predicted]), trained.model(X).hypotheses)


class Many(Dataset):
    """A dataset that is read by workers."""

    def __len__(self):
        return N

    def __getitem__(self, index):
        return mcl.Batch(X[index], FULL[index])


@for_each("n_workers", [0, 2])
def test_a_plain_loader_puts_batches_together(n_workers):
    batches = list(DataLoader(Many(), batch_size=4, num_workers=n_workers))
    assert [type(batch) for batch in batches] == [mcl.Batch] * 3
    assert all(batch.mask is None for batch in batches)
    torch.testing.assert_close(torch.cat([batch.targets for batch in batches]), FULL)


def test_a_missing_mask_says_that_all_targets_are_real():
    samples = [mcl.Batch(X[0], torch.zeros(2, 2)), mcl.Batch(X[1], torch.zeros(2, 2), torch.tensor([True, False]))]
    assert collate_batches(samples).mask.tolist() == [[True, True], [True, False]]


def test_what_is_no_batch_is_refused():
    for loaded, words in ((X, "Tensor"), ((X,), "a tuple of 1"), ({"x": X, "y": Y}, "a dictionary with ")):
        with pytest.raises(TypeError, match=rf"as_batch: `batch` must be a Batch, .* got {words}"):
            as_batch(loaded)
