"""A bank of adapters gives what each adapter gives alone, in training and inference."""

import copy

import pytest
import torch
from torch import nn

import torchmcl as mcl
from grids import for_each
from torchmcl.adapters import AdapterBank, load_adapters, save_adapters
from torchmcl.passes import TwoPass

K, RANK = 3, 2


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 8), nn.Tanh(), nn.Sequential(nn.Linear(8, 8), nn.ReLU()), nn.Linear(8, 2)
    ).double()


def random_bank(**options):
    bank = AdapterBank(network(), K, RANK, **{"targets": ["0", "3"], "alpha": 6, **options})
    torch.manual_seed(1)
    for up in bank.up.values():
        nn.init.normal_(up)
    return bank


def by_hand(bank, inputs, number):
    """The output of one adapter, from weights that hold it."""
    plain = network()
    for name in bank.layers:
        key = name.replace(".", "/")
        change = bank.up[key][number] @ bank.down[key][number] * bank.alpha / bank.rank
        layer = plain.get_submodule(name)
        weight = layer.weight.detach() + change
        del layer.weight
        layer.weight = weight
    return plain(inputs)


def test_outputs_and_gradients_are_those_of_each_adapter_alone():
    bank, inputs = random_bank(), torch.randn(5, 4, dtype=torch.float64)
    expected = torch.stack([by_hand(bank, inputs, number) for number in range(K)], dim=1)
    found = bank.unfold(bank(inputs))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    weights = torch.randn_like(found)
    both = [torch.autograd.grad((weights * output).sum(), bank.adapters()) for output in (found, expected)]
    torch.testing.assert_close(*both, rtol=0, atol=1e-10)
    numbers = torch.tensor([2, 0, 1, 1, 2])
    torch.testing.assert_close(bank(inputs, numbers=numbers), expected[torch.arange(5), numbers], rtol=0, atol=1e-12)
    torch.testing.assert_close(bank(inputs[:1]), expected[:1].squeeze(0), rtol=0, atol=1e-12)  # one row


def test_training_and_inference_have_the_same_scale():
    bank, inputs = random_bank(), torch.randn(5, 4, dtype=torch.float64)
    assert torch.equal(bank.train()(inputs), bank.eval()(inputs))


def test_at_first_all_hypotheses_are_the_network_and_only_adapters_are_trained():
    plain, inputs = network(), torch.randn(5, 4, dtype=torch.float64)
    bank = AdapterBank(network(), K, RANK, targets=r"2\..*")
    assert bank.layers == ["2.0"]
    assert torch.equal(bank.unfold(bank(inputs)), plain(inputs).unsqueeze(1).expand(-1, K, -1))
    trained = {name for name, parameter in bank.named_parameters() if parameter.requires_grad}
    assert trained == {"down.2/0", "up.2/0"}
    assert set(bank.model.state_dict()) == set(plain.state_dict())


@for_each("number", range(K))
def test_a_merged_adapter_is_the_network_and_unmerging_restores_it(number):
    bank, inputs = random_bank(), torch.randn(5, 4, dtype=torch.float64)
    expected = by_hand(bank, inputs, number)
    torch.testing.assert_close(bank.merge(number)(inputs), expected)
    with pytest.raises(RuntimeError, match="AdapterBank: `model` must not be merged"):
        bank(inputs)
    bank.unmerge()
    with bank.disabled():
        torch.testing.assert_close(bank.model(inputs), network()(inputs))
    torch.testing.assert_close(bank.unfold(bank(inputs))[:, number], expected)


def test_two_passes_and_a_copy_have_the_gradients_of_all_at_once():
    bank = random_bank()
    batch = mcl.Batch(torch.randn(6, 4, dtype=torch.float64), torch.randn(6, 2, dtype=torch.float64))

    def chunk(inputs, numbers):
        rows = inputs.repeat(numbers.shape[1], 1)
        return mcl.Predictions(bank(rows, numbers=numbers.T.flatten()).unflatten(0, (-1, len(inputs))).transpose(0, 1))

    other = copy.deepcopy(bank)
    found = []
    for model, owner in (
        (lambda x: mcl.Predictions(bank.unfold(bank(x))), bank),
        (TwoPass(chunk, K, chunk_size=2), bank),
        (TwoPass(chunk, K, independent_rows=True), bank),
        (lambda x: mcl.Predictions(other.unfold(other(x))), other),
    ):
        owner.zero_grad()
        mcl.mcl_step(model, batch, mcl.WTA()).loss.backward()
        found.append([parameter.grad.clone() for parameter in owner.adapters()])
    for each in found[1:]:
        torch.testing.assert_close(each, found[0], rtol=0, atol=1e-10)


def test_a_file_restores_the_adapters(tmp_path):
    pytest.importorskip("safetensors")
    bank, inputs = random_bank(dropout=0.25, targets="0|3"), torch.randn(5, 4, dtype=torch.float64)
    save_adapters(bank, tmp_path / "bank.safetensors")
    loaded = load_adapters(network(), tmp_path / "bank.safetensors").eval()
    assert (loaded.n_hypotheses, loaded.rank, loaded.alpha, loaded.dropout) == (K, RANK, 6, 0.25)
    assert torch.equal(loaded(inputs), bank.eval()(inputs))
    wide = network()
    wide[0] = nn.Linear(9, 8)
    with pytest.raises(ValueError, match=r"load_adapters: `.*` must fit the layer 0 of the model"):
        load_adapters(wide, tmp_path / "bank.safetensors")


@for_each(
    "options, error, words",
    [
        ({"targets": ["q_proj"]}, ValueError, r"AdapterBank: `targets` must name linear layers .* got \['q_proj'\]"),
        ({"targets": ["1"]}, ValueError, "must name linear layers"),
        ({"targets": ["0"], "rank": 0}, ValueError, "AdapterBank: `rank` must be >= 1"),
        ({"targets": ["0"], "alpha": -1}, ValueError, "AdapterBank: `alpha` must be > 0"),
        ({"targets": ["0"], "n_hypotheses": 0}, ValueError, "AdapterBank: `n_hypotheses` must be >= 1"),
    ],
)
def test_bad_arguments_are_refused_in_words(options, error, words):
    with pytest.raises(error, match=words):
        AdapterBank(network(), **{"n_hypotheses": 2, **options})


def test_rows_that_are_not_repeated_are_refused_in_words():
    with pytest.raises(ValueError, match="AdapterBank: `inputs` must have a multiple of 3 rows"):
        random_bank().model(torch.randn(5, 4, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"AdapterBank: `number` must be in 0 \.\. 2"):
        random_bank().merge(3)
