"""The Triton kernels compute what the plain code computes: in Triton's interpreter, or on a GPU where there is one."""

import os
import subprocess
import sys

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

_CHECKS = """
import math, torch
from torch.testing import assert_close
from torchmcl.kernels import adam, pairs, rows
device = "{device}"
torch.manual_seed(0)
draw = lambda *shape: torch.randn(*shape, device=device)

for shape in ((1, 1), (5, 7), (3, 2, 49), (70, 64), (2, 130)):
    cost, logits, upstream = draw(*shape).square(), 5 * draw(*shape), draw(*shape[:-1])
    labels = torch.rand(*shape, device=device)
    assert_close(rows.softmin_rows(cost, -math.log2(math.e) / 0.3), (-cost / 0.3).softmax(-1))
    if cost.ndim > 1:
        n = len(cost)
        warm = torch.arange(n, device=device) % 2 == 0
        factors = torch.where(warm, -math.log2(math.e) / 0.3, 0.0)
        epsilons = torch.full((n,), 0.1, device=device)
        flags = warm.view(n, *[1] * (cost.ndim - 1))
        others = max(shape[-1] - 1, 1)
        hard = rows.winner_rows(cost, 0.9, 0.1 / others) if shape[-1] > 1 else torch.ones_like(cost)
        expected = torch.where(flags, rows.softmin_rows(cost, -math.log2(math.e) / 0.3), hard)
        assert_close(rows.mixed_rows(cost, factors, epsilons), expected)
    assert_close(rows.dot_rows(cost, labels), (cost * labels).sum(-1))
    onehot = torch.nn.functional.one_hot(cost.argmin(-1), shape[-1]).to(cost)
    assert_close(rows.winner_rows(cost, 0.9, 0.1), 0.1 + 0.8 * onehot)
    bce = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels, reduction="none").sum(-1)
    assert_close(rows.bce_rows(logits, labels), bce)
    assert_close(rows.bce_rows_backward(logits, labels, upstream), (logits.sigmoid() - labels) * upstream[..., None])

spoilt = torch.tensor([[1.0, float("nan"), 2.0], [0.0, 1.0, float("inf")]], device=device)
weights = rows.softmin_rows(spoilt, -1.0)
assert (weights * spoilt).sum(-1).isnan().all(), weights

from torchmcl.fleet import Adam
flat, reference = draw(3, 700), None
for decay in (None, torch.tensor([[0.1], [0.0], [0.3]], device=device)):
    mine, lr = flat.clone(), torch.tensor([[0.01], [0.1], [0.003]], device=device)
    state = Adam().init(mine)
    alone = [torch.nn.Parameter(row.clone()) for row in flat]
    optimizers = [torch.optim.AdamW([p], lr=float(lr[i]), weight_decay=0.0 if decay is None else float(decay[i]))
                  for i, p in enumerate(alone)]
    for step in range(5):
        grad = draw(3, 700)
        state["n_steps"].add_(1)
        adam.adam_rows(mine, grad, state["mean"], state["square"], state["n_steps"], lr, decay, (0.9, 0.999), 1e-8)
        for p, optimizer, g in zip(alone, optimizers, grad):
            p.grad = g.clone()
            optimizer.step()
    assert_close(mine, torch.stack([p.detach() for p in alone]), rtol=1e-4, atol=1e-5)

def check(few, n, T, K, D):
    h, t, g = draw(n, K, D), draw(n, T, D), draw(n, T, K)
    difference = h[:, None].double() - t[:, :, None].double()
    cost = difference.square().sum(-1)
    to_h = (2 * g[..., None].double() * difference).sum(1)
    to_t = -(2 * g[..., None].double() * difference).sum(2)
    if few:
        got = pairs.sq_few_dims(h, t), pairs.sq_few_dims_to_hypotheses(h, t, g), pairs.sq_few_dims_to_targets(h, t, g)
    else:
        c = t.mean(1, keepdim=True)
        got = (pairs.sq_many_dims(h, t, c), pairs.sq_many_dims_to_hypotheses(h, t, c, g),
               pairs.sq_many_dims_to_targets(h, t, c, g))
    for mine, exact in zip(got, (cost, to_h, to_t)):
        assert_close(mine.double(), exact, rtol=1e-4, atol=1e-4)

check(True, 5, 1, 49, 2)
check(True, 3, 4, 7, 3)
check(True, 2, 3, 300, 1)
check(False, 2, 16, 70, 40)
check(False, 3, 3, 130, 100)
check(False, 1, 1, 5, 33)

from torchmcl.kernels import linear
cases = ((3, 5, 6, 50, True), (2, 300, 50, 10, False), (1, 700, 17, 128, True), (2, 1, 1, 1, False))
for models, n, n_in, n_out, rectified in cases:
    x, w, b, g = draw(models, n, n_in), draw(models, n_out, n_in), draw(models, n_out), draw(models, n, n_out)
    leaves = [part.double().requires_grad_() for part in (x, w, b)]
    exact = torch.einsum("mri,moi->mro", leaves[0], leaves[1]) + leaves[2][:, None]
    exact = exact.relu() if rectified else exact
    y = linear.linear_rows(x, w, b, rectified)
    assert_close(y.double(), exact.detach(), rtol=1e-4, atol=1e-4)
    pulled = torch.autograd.grad((exact * g.double()).sum(), leaves)
    for needs in (True, False):
        got = linear.linear_rows_backward(x, w, y, g, rectified, needs)
        assert needs or got[0] is None
        for mine, right in zip(got, pulled):
            if mine is not None:
                assert_close(mine.double(), right, rtol=1e-3, atol=1e-3)
print("all agree")
"""


def _run(device: str, interpret: bool) -> subprocess.CompletedProcess[str]:
    environment = os.environ | ({"TRITON_INTERPRET": "1"} if interpret else {})
    code = _CHECKS.replace("{device}", device)
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels run for real on this machine")
def test_kernels_agree_with_the_plain_code_in_the_interpreter():
    run = _run("cpu", interpret=True)
    assert "all agree" in run.stdout, run.stderr[-3000:]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_kernels_agree_with_the_plain_code_on_the_gpu():
    run = _run("cuda", interpret=False)
    assert "all agree" in run.stdout, run.stderr[-3000:]
