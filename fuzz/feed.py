"""Bytes turned into values: the same bytes always give the same values, and any bytes give some."""

import math
import struct
from collections.abc import Sequence
from typing import Any

import torch

# Where arithmetic breaks if it does.
SPECIAL = (
    0.0, -0.0, 1.0, -1.0, 0.5, 1e-12, 1e12, 1e-30, 1e30, -1e30, 1e-45, 5e-324, 3.4e38, -3.4e38, 1e300, -1e300, 65504.0,
    1e-8, math.inf, -math.inf, math.nan, 2.0**24, 0.1,
)  # fmt: skip
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
WRONG_DTYPES = (torch.int64, torch.bool, torch.complex64, torch.uint8)


class Feed:
    """Values from bytes; zeros when they are used up."""

    def __init__(self, content: bytes) -> None:
        self.content, self.place = content, 0

    def bytes(self, n: int) -> bytes:
        """Return n bytes."""
        part = self.content[self.place : self.place + n]
        self.place += n
        return part.ljust(n, b"\0")

    def rest(self) -> bytes:
        """Return what is left."""
        part = self.content[self.place :]
        self.place = len(self.content)
        return part

    def below(self, n: int) -> int:
        """Return an integer from 0 to n - 1."""
        return int.from_bytes(self.bytes(2 if n > 256 else 1), "little") % n

    def one_in(self, n: int) -> bool:
        """Return True for one of n."""
        return self.below(n) == n - 1

    def pick(self, choices: Sequence[Any]) -> Any:
        """Return one of some choices."""
        return choices[self.below(len(choices))]

    def number(self) -> float:
        """Return a special number, an ordinary one, or any pattern of bits."""
        kind = self.below(4)
        if kind == 0:
            return float(self.pick(SPECIAL))
        if kind == 1:
            return float(struct.unpack("<d", self.bytes(8))[0])
        return (self.below(512) - 256) / 64 * 10.0 ** (self.below(5) - 2)

    def anything(self) -> Any:
        """Return what may be given where a number is wanted, by mistake."""
        wrong = (None, "0.5", "", [1.0], True, 10**400, -(10**400), 1j, b"1", {}, (1, 2), 0, 1, 2, -1, 3.7)
        return self.pick(wrong) if self.one_in(4) else self.number()

    def shape(self, n_dims: int, largest: int = 4) -> tuple[int, ...]:
        """Return sizes, rarely 0."""
        return tuple(0 if self.one_in(16) else 1 + self.below(largest) for _ in range(n_dims))

    def tensor(self, shape: tuple[int, ...], *, finite: bool = False, dtype: Any = None) -> torch.Tensor:
        """Return a tensor with values of one magnitude, of mixed ones, or equal ones."""
        dtype = dtype or (self.pick(WRONG_DTYPES) if self.one_in(24) else self.pick(DTYPES))
        generator = torch.Generator().manual_seed(self.below(65536))
        made = torch.randn(shape, generator=generator, dtype=torch.float64)
        kind = self.below(5)
        if kind == 1:
            made = made * 10.0 ** (self.below(61) - 30)
        elif kind == 2:
            made = made * 10.0 ** torch.randint(-30, 31, shape, generator=generator).double()
        elif kind == 3:
            made = torch.full(shape, self.number(), dtype=torch.float64)
        if not finite and made.numel() and self.one_in(6):
            made.view(-1)[self.below(made.numel())] = self.number()
        if finite:
            made = made.nan_to_num(1.0, 1e30, -1e30).clamp(-1e30, 1e30)
            if dtype == torch.float16:
                made = made.clamp(-6e4, 6e4)
        if dtype.is_complex or dtype.is_floating_point:
            return made.to(dtype)
        return made.nan_to_num(0.0).clamp(-100, 100).to(dtype)

    def mask(self, shape: tuple[int, ...]) -> Any:
        """Return no mask, a good one, one that broadcasts, or a wrong one."""
        kind = self.below(8)
        if kind < 3:
            return None
        generator = torch.Generator().manual_seed(self.below(65536))
        made = torch.rand(shape, generator=generator) < (self.below(5) / 4)
        if kind == 3:
            return made[..., :1]
        if kind == 4 and self.one_in(3):
            return made.float()
        if kind == 5 and self.one_in(3):
            return torch.ones((*shape, 2), dtype=torch.bool)
        return made

    def mutated(self, seed: bytes) -> bytes:
        """Return a good file with a few things wrong with it."""
        content = bytearray(seed)
        for _ in range(self.below(6)):
            place = self.below(65536) % (len(content) + 1)
            kind = self.below(9)
            if kind == 0:
                content[place : place + 1] = self.bytes(1)
            elif kind == 1 and content:
                content[min(place, len(content) - 1)] ^= 1 << self.below(8)
            elif kind == 2:
                del content[place : place + 1 + self.below(64)]
            elif kind == 3:
                content[place:place] = self.bytes(1 + self.below(8))
            elif kind == 4:
                length = self.below(64)
                content[place:place] = content[place : place + length]
            elif kind == 5:
                content[place : place + 4] = struct.pack("<I", self.pick((0, 1, 0x7FFFFFFF, 0xFFFFFFFF, 0x80000000)))
            elif kind == 6:
                del content[place:]
            elif kind == 7:
                content[place:place] = self.pick(WORDS)
            else:
                content = content[place:] + content[:place]
        return bytes(content)


WORDS = (
    b"[" * 3000, b'{"a":' * 1200, b"nan", b"-inf", b"1e999", b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b'"', b",", b"\n", b"\r",
    b"9" * 400, b"null", b"true", b"{}", b"[]", b"../", b"<script>", b"\x1f\x8b\x08", b"PAR1", b"RIFF", b"1" * 5000, b"-",
    b"a" * 140000,
)  # fmt: skip
