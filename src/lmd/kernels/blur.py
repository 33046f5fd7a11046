"""Compiled blurs of images with a border, and their adjoints."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from lmd import kernels


class Taps:
    """The passes of a blur as C has them: the entries of flipped kernels that are not 0.

    Args:
        passes: One kernel `(h, w)`, or a column and a row that are applied one after the other.
        circular: Whether images wrap around; otherwise the border pixels are repeated.
    """

    def __init__(self, passes: Sequence[Tensor], circular: bool) -> None:
        found = [(each.flip(0, 1), each.flip(0, 1).nonzero()) for each in passes]
        self.places = torch.cat([places for _, places in found]).contiguous()
        self.values = torch.cat([taps[places[:, 0], places[:, 1]] for taps, places in found]).float()
        self.sizes = [size for taps, places in found for size in (*taps.shape, len(places))]
        self.circular, self.passes = circular, len(passes)

    def __call__(self, images: Tensor, adjoint: bool = False) -> Tensor:
        """Of `(n, H, W)`."""
        x = images.detach().contiguous()
        sizes = (*x.shape, self.circular, adjoint, self.passes, *self.sizes)
        threads = torch.get_num_threads() if x.numel() >= kernels.SMALL else 1
        out, given = torch.empty_like(x), (x.data_ptr(), self.values.data_ptr(), self.places.data_ptr())
        code = _function()(*given, (ctypes.c_long * len(sizes))(*sizes), threads, out.data_ptr())
        kernels.check_code(code, "the margins of a compiled blur")
        return out


@functools.cache
def _function() -> Callable[..., int]:
    kernels.module()  # which answers signals
    function: Any = kernels.library()
    function.lmd_blur.argtypes = (*(ctypes.c_void_p,) * 4, ctypes.c_int, ctypes.c_void_p)
    return cast(Callable[..., int], function.lmd_blur)
