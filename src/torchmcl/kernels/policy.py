"""The policy of `torchmcl.annealing.AutoAnnealing` for one model, inside a kernel: the same formulas on numbers.

`numbers` of a model are its given weight decay, then hold_gain, cooling, log2(end / begin) and noise_decay / targets of
its policy, the factor on the learning rate of a long training, and the constants of the policy: the temperatures of
the hold and of its end relative to the scale, where the rate settles, the shares of the warm-up and of the longest
hold, and the strongest weight decay.
"""

import triton
import triton.language as tl

__all__ = ["decided", "updated"]

_PI = tl.constexpr(3.141592653589793)


@triton.jit
def decided(first, scale, lowest, begun, epoch, n_epochs, numbers):  # type: ignore[no-untyped-def]
    """Return temperature, factor on the learning rate and weight decay of an epoch, as `AutoAnnealing.value`."""
    cooling, end = tl.load(numbers + 2), tl.load(numbers + 3)
    noise_decay, longer = tl.load(numbers + 4), tl.load(numbers + 5)
    hold, begin, settling = tl.load(numbers + 6), tl.load(numbers + 7), tl.load(numbers + 8)
    warm_up, strongest = tl.load(numbers + 9), tl.load(numbers + 11)
    holds = begun < 0
    # Rounded as torch rounds: the tail begins where `cooled` is exactly 1.
    after = tl.div_rn(epoch - begun, tl.maximum(n_epochs - begun, 1.0))
    after = tl.minimum(tl.maximum(after, 0.0), 1.0)  # share of what the hold left
    cooled = tl.div_rn(after, cooling)
    falling = begin * scale * tl.exp2(end * tl.minimum(cooled, 1.0))
    temperature = tl.where(holds, hold * scale, tl.where(cooled < 1, falling, 0.0))
    settled = tl.maximum((after - settling) * (_PI / (1 - settling)), 0.0)
    rate = tl.where(holds, 1.0, (1 + tl.cos(settled)) / 2) * longer
    unknown = lowest / tl.maximum(first, 1.1754943508222875e-38)
    decay = noise_decay * unknown * (1 - unknown)
    decay = tl.where(epoch < warm_up * n_epochs, 0.0, decay)
    return temperature, rate, tl.minimum(decay, strongest)


@triton.jit
def updated(measured, first, scale, lowest, begun, epoch, n_epochs, numbers):  # type: ignore[no-untyped-def]
    """Return scale, lowest and begun of a model that holds, after `epoch` epochs, as `AutoAnnealing.update`."""
    hold_gain, cooling = tl.load(numbers + 1), tl.load(numbers + 2)
    warm_up, longest = tl.load(numbers + 9), tl.load(numbers + 10)
    scale = tl.where(measured - measured == 0, measured, scale)
    lowest = tl.minimum(lowest, scale)
    gained = tl.maximum(tl.log(first / tl.maximum(scale, 1.1754943508222875e-38)), 0.0)
    wished = hold_gain / gained
    share = longest / (1 + wished * wished)
    latest = n_epochs - 1 - 1 / (1 - cooling)
    begins = epoch >= tl.minimum(tl.maximum(share, warm_up) * n_epochs, latest)
    return scale, lowest, tl.where(begins, epoch + 0.0, begun)
