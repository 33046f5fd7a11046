"""Compiled steps for the CPU: the same numbers as PyTorch's to rounding, in one pass; without them only time changes.

`tv.c` is compiled when the package is installed, where there is a C compiler: once for every x86-64 or ARM processor,
and again for those with AVX2 and with AVX-512. Nothing is compiled when a program runs. The threads are PyTorch's own,
as many as `torch.get_num_threads()` says. `LMD_KERNELS=0` in the environment leaves them out.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import conv2d, pad

SMALL = 20_000
"""Fewer pixels than this are not worth a second thread."""

LARGEST = 9
"""The largest kernel that is compiled for."""

BUILDS = {"AVX512": ("_tv_avx512", "_tv_avx2", "_tv"), "AVX2": ("_tv_avx2", "_tv")}
"""What may run on a processor, by PyTorch's name for what it can do; the best first."""


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled code for this processor; None where there is none."""
    if os.environ.get("LMD_KERNELS", "1") == "0":
        return None
    builds = BUILDS.get(torch.backends.cpu.get_cpu_capability(), ("_tv",))
    return next((found for build in builds if (found := load(build)) is not None), None)


def load(build: str) -> ctypes.CDLL | None:
    """One of the builds; None where it is not there, or was compiled for another machine."""
    for suffix in EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(build + suffix)
        if path.is_file():
            try:
                return ctypes.CDLL(str(path))  # after torch, so that both have one OpenMP and one set of threads
            except OSError:
                continue
    return None


def serves(*tensors: Tensor) -> bool:
    """Whether a compiled step can stand in here: float32 on the CPU, and nothing is recorded."""
    if any(tensor.dtype != torch.float32 or tensor.device.type != "cpu" for tensor in tensors):
        return False
    recording = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    return not recording and library() is not None


def dual_steps(
    x: Tensor,
    p: Tensor | None,
    before: Tensor | None,
    noisy: Tensor,
    bound: float | Tensor,
    gamma: float,
    kernels: Tensor,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """p_{k+n} `(B, C, 2, H, W)`, p_{k+n-1} and x_{k+n} `(B, C, H, W)` of `LearnedDual`, from x_k, p_k and p_{k-1}.

    There is a step for each of the kernels `(n, 2, 4, s, s)`. None is 0, where it is given; as p_{k+n-1} it is p_k.
    """
    steps = kernels.shape[0]
    shape = (*x.shape[:2], 2, *x.shape[2:])
    new_p, new_x = x.new_empty(shape), torch.empty_like(x)
    last_p = x.new_empty(shape) if steps > 1 else None
    inputs = (x, p, before, noisy, kernels, _per_plane(bound, x))
    sizes = (*_sizes(x), kernels.shape[-1], steps)
    _call("lmd_dual_steps", inputs, gamma, sizes, (new_p, last_p, new_x), x.numel())
    return new_p, last_p, new_x


def saddle_steps(
    start: tuple[Tensor, Tensor | None, Tensor | None, Tensor | None],
    noisy: Tensor,
    mask: Tensor,
    box: tuple[Tensor, Tensor],
    bound: float | Tensor,
    smoothness: float,
    kernels: tuple[Tensor, Tensor],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x_{k+n}, its move from x_{k+n-1}, p_{k+n} and its move of `LearnedSaddle`, from those of k.

    There is a step for each of the kernels `(n, 2, 6, s, s)` and `(n, 2, 3, t, t)`. `mask` is `(B, 1, H, W)` or
    `(B, C, H, W)`, the ends of the box `(B, C, 1, 1)`. All but x may be None at the start, which is 0.
    """
    x = start[0]
    shape = (*x.shape[:2], 2, *x.shape[2:])
    outputs = (torch.empty_like(x), torch.empty_like(x), x.new_empty(shape), x.new_empty(shape))
    inputs = (*start, noisy, mask, *kernels, _per_plane(bound, x), *box)
    planes, height, width = _sizes(x)
    channels_per_mask = x.shape[1] // mask.shape[1]
    sizes = (planes, channels_per_mask, height, width, kernels[0].shape[-1], kernels[1].shape[-1], len(kernels[0]))
    _call("lmd_saddle_steps", inputs, smoothness, sizes, outputs, x.numel())
    return outputs


def tv_sums(
    x: Tensor, p: Tensor | None, y: Tensor | None, bound: float | Tensor, inverse: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Sums over each image `(B,)`: |Kx|; b |Kx| - <Kx, p>; (x - y + inverse K'p)^2.

    x, y `(B, C, H, W)`, p `(B, C, 2, H, W)`, taken within the bound b. Without p it is 0, without y the third sum is.
    """
    out = torch.empty(x.shape[0], x.shape[1], 3, dtype=torch.float64)
    inputs = (x, p, y, _per_plane(bound, x))
    _call("lmd_tv_sums", inputs, inverse, _sizes(x), (out,), x.numel())
    total, slack, square = out.sum(dim=1).to(x.dtype).unbind(dim=1)
    return total, slack, square


def convolve(x: Tensor, kernel: Tensor) -> Tensor:
    """`conv2d` with zeros around the images: x `(n, I, H, W)`, kernel `(O, I, k, k)` of an odd k, to `(n, O, H, W)`.

    For few channels, where PyTorch's own is slow forward and slower backward; elsewhere it is PyTorch's own.
    """
    fits = x.dtype == kernel.dtype == torch.float32 and x.device.type == "cpu" and kernel.shape[-1] <= LARGEST
    if not fits or library() is None:
        return conv2d(x, kernel, padding=kernel.shape[-1] // 2)
    return cast(Tensor, _Convolution.apply(x, kernel))  # type: ignore[no-untyped-call]


class _Convolution(torch.autograd.Function):
    """The compiled convolution and its derivatives, which are convolutions too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Tensor) -> Tensor:
        ctx.save_for_backward(x, kernel)
        return _even(x, kernel)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, kernel = ctx.saved_tensors
        by_x = by_kernel = None
        if ctx.needs_input_grad[0]:
            by_x = _even(gradient, kernel.flip(2, 3).transpose(0, 1))
        if ctx.needs_input_grad[1]:
            outputs = kernel.shape[0]
            full = pad(gradient, (0, 0, 0, 0, 0, outputs % 2))
            found = kernel.new_empty(outputs + outputs % 2, *kernel.shape[1:])
            sizes = (x.shape[0], x.shape[1], len(found), *x.shape[2:], kernel.shape[-1])
            _call("lmd_convolve_backward", (x, full), None, sizes, (found,), x.numel())
            by_kernel = found[:outputs]
        return by_x, by_kernel


def _even(x: Tensor, kernel: Tensor) -> Tensor:
    """The convolution, its outputs computed in pairs."""
    outputs = kernel.shape[0]
    full = pad(kernel, (0, 0, 0, 0, 0, 0, 0, outputs % 2))
    out = x.new_empty(x.shape[0], len(full), *x.shape[2:])
    sizes = (x.shape[0], x.shape[1], len(full), *x.shape[2:], kernel.shape[-1])
    _call("lmd_convolve", (x, full), None, sizes, (out,), x.numel())
    return out[:, :outputs]


def _sizes(x: Tensor) -> tuple[int, int, int]:
    return x.shape[0] * x.shape[1], x.shape[2], x.shape[3]


def _per_plane(bound: float | Tensor, x: Tensor) -> Tensor:
    """The bound of each image and channel `(B C,)`."""
    planes = x.shape[0] * x.shape[1]
    if isinstance(bound, Tensor):
        return bound.repeat_interleave(x.shape[1])
    return torch.full((planes,), bound)


def _call(
    name: str,
    inputs: tuple[Tensor | None, ...],
    scale: float | None,
    sizes: tuple[int, ...],
    outputs: tuple[Tensor | None, ...],
    work: int,
) -> None:
    held = [tensor if tensor is None else tensor.contiguous() for tensor in inputs]  # alive until it is over
    threads = torch.get_num_threads() if work >= SMALL else 1
    places = [None if tensor is None else tensor.data_ptr() for tensor in (*held, *outputs)]
    scales = () if scale is None else (scale,)
    function = _function(name, len(held), len(scales), len(sizes), len(outputs))
    if function(*places[: len(held)], *scales, *sizes, threads, *places[len(held) :]):
        raise MemoryError("no memory for the working rows of a compiled step")


@functools.cache
def _function(name: str, inputs: int, scales: int, sizes: int, outputs: int) -> Callable[..., int]:
    code = library()
    assert code is not None
    function = getattr(code, name)
    function.argtypes = (
        *(ctypes.c_void_p,) * inputs,
        *(ctypes.c_float,) * scales,
        *(ctypes.c_long,) * sizes,
        ctypes.c_int,
        *(ctypes.c_void_p,) * outputs,
    )
    return cast(Callable[..., int], function)
