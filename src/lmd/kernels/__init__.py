"""Compiled code for the CPU: how it is found and called, and convolutions of few channels.

If there is a compiler, C is compiled when the package is installed: one build for every x86-64 or ARM processor, and
further builds for AVX2 and AVX-512. Nothing is compiled when a program runs. Compiled code uses the threads of
PyTorch, at most `torch.get_num_threads()`. The environment variable `LMD_KERNELS=0` disables compiled code.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
import platform
import warnings
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import conv1d, conv2d, conv3d, pad

from lmd.core.checks import shape_of
from lmd.errors import InputError

SMALL = 20_000  # pixels; less work is not worth a second thread

BUILDS = {"AVX512": ("_native_avx512", "_native_avx2", "_native"), "AVX2": ("_native_avx2", "_native")}
"""Builds that run on a processor, by PyTorch's name for its capability; the fastest first."""

PLAIN = ("_native",)  # the build that runs on all processors of the architecture
INSTRUCTIONS = {"_native_avx512": "AVX-512", "_native_avx2": "AVX2", "_native": f"all of {platform.machine()}"}


@functools.cache
def library() -> Any:
    """Return the module of compiled code for this processor, with its functions and constants; None if missing."""
    if os.environ.get("LMD_KERNELS", "1") == "0":
        return None
    builds = BUILDS.get(torch.backends.cpu.get_cpu_capability(), PLAIN)
    found = next((found for build in builds if (found := load(build)) is not None), None)
    if found is None:
        advice = "install a wheel, or a C compiler and then lmd again; LMD_KERNELS=0 silences this warning"
        warnings.warn(f"no compiled kernels: the same answers take longer; {advice}", RuntimeWarning, stacklevel=2)
    return found


def load(build: str) -> Any:
    """Import one of the builds; None if it does not exist or was compiled for another machine."""
    try:
        return importlib.import_module(f"{__name__}.{build}")  # after torch, so that both share OpenMP and its threads
    except ImportError:
        return None


def instructions() -> str | None:
    """Return the instruction set of the compiled code in use; None without compiled code."""
    found = library()
    return None if found is None else INSTRUCTIONS[found.__name__.rpartition(".")[2]]


IS_FOUND = library() is not None  # evaluated at import, before torch.compile traces this module
MAX_KERNEL = library().LARGEST if IS_FOUND else 0  # side of the largest kernel of compiled convolutions


def _end_threads() -> None:
    """End the OpenMP threads of this thread; its next parallel work starts them again.

    GNU OpenMP keeps its threads, but a forked process has none of them and would wait for them forever.
    """
    pause = getattr(ctypes.CDLL(torch._C.__file__), "omp_pause_resource_all", None)  # from the OpenMP of PyTorch
    if pause is not None:
        pause(2)  # omp_pause_hard of omp.h


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_end_threads)


def serves(*tensors: Tensor) -> bool:
    """Return whether compiled code can take these tensors: float32 on the CPU, not recorded by autograd or traced."""
    if any(tensor.dtype != torch.float32 or tensor.device.type != "cpu" for tensor in tensors):
        return False
    recording = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    return not recording and not torch.compiler.is_compiling() and library() is not None


def threads_for(work: Tensor, meetings: int = 1) -> int:
    """Return how many threads to use: one if `work` has fewer than `meetings` times `SMALL` entries, otherwise all."""
    return torch.get_num_threads() if work.numel() >= meetings * SMALL else 1


def call(
    name: str,
    arrays: Sequence[Tensor | None],
    reals: Sequence[float] = (),
    sizes: Sequence[int] = (),
    *,
    threads: int = 1,
    reports: int = 0,
) -> list[float]:
    """Call a C function; only this function passes addresses of tensors to C.

    Args:
        name: The name of the function without the prefix `lmd_`; the comment above it in C describes its arguments.
        arrays: Contiguous tensors of the required dtypes and shapes; C may write to them. None is passed as NULL.
        reals: Real numbers.
        sizes: Integers.
        threads: The number of threads.
        reports: The length of the returned list.

    Returns:
        The numbers that the function reports.

    Raises:
        MemoryError: Out of memory. A signal handler can raise other exceptions, such as KeyboardInterrupt.
    """
    function = getattr(library(), name)
    addresses: list[int | None] = []
    for each in arrays:
        addresses.append(None if each is None else each.data_ptr())
    return cast(list[float], function(tuple(addresses), tuple(reals), tuple(sizes), threads, reports))


def as_rows(argument: str, tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """Return the tensor, detached and contiguous, for C; raise unless it is float32, on the CPU and of this shape."""
    if tensor.dtype != torch.float32 or tensor.device.type != "cpu":
        raise InputError(
            argument, f"{tensor.dtype} on {tensor.device}", "torch.float32 on the CPU, as compiled steps are"
        )
    if tensor.shape != tuple(shape):
        raise InputError(argument, f"shape {shape_of(tensor)}", f"shape {tuple(shape)}")
    return tensor.detach().resolve_neg().contiguous()


def convolve(x: Tensor, kernel: Tensor) -> Tensor:
    """Convolve x `(n, I, *size)` with a kernel `(O, I, k, ...)` of odd k and zero padding; return `(n, O, *size)`.

    `size` has one to three axes. Compiled code applies small float32 kernels to images on the CPU, because PyTorch is
    slow for few channels, above all in the backward pass. PyTorch handles all other inputs.
    """
    is_there = IS_FOUND if torch.compiler.is_compiling() else library() is not None
    fits = x.dtype == kernel.dtype == torch.float32 and x.device.type == "cpu" and x.ndim == 4
    if not (fits and is_there and kernel.shape[-1] <= MAX_KERNEL):
        own = {3: conv1d, 4: conv2d, 5: conv3d}[x.ndim]
        return own(x, kernel, padding=kernel.shape[-1] // 2)
    return cast(Tensor, _Convolution.apply(x, kernel))  # type: ignore[no-untyped-call]


class _Convolution(torch.autograd.Function):
    """The compiled convolution and its derivatives, which are convolutions too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Tensor) -> Tensor:
        ctx.save_for_backward(x, kernel)
        return _convolved(x, kernel)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, kernel = ctx.saved_tensors
        by_x = by_kernel = None
        if ctx.needs_input_grad[0]:
            by_x = _convolved(gradient, kernel.flip(2, 3).transpose(0, 1))
        if ctx.needs_input_grad[1]:
            correlate: Any = opaque_by_kernel if torch.compiler.is_compiling() else _correlate
            by_kernel = correlate(x, gradient, kernel.shape[-1])
        return by_x, by_kernel


def _convolved(x: Tensor, kernel: Tensor) -> Tensor:
    """Call the compiled convolution; as a custom operator while `torch.compile` or `torch.export` traces it."""
    return opaque_convolve(x, kernel) if torch.compiler.is_compiling() else _convolve(x, kernel)


def _convolve(x: Tensor, kernel: Tensor) -> Tensor:
    (images, fields, *sides), outputs, size = x.shape, len(kernel), kernel.shape[-1]
    even = outputs + outputs % 2  # C computes output channels in pairs
    full = as_rows("kernel", pad(kernel, (0, 0, 0, 0, 0, 0, 0, even - outputs)), (even, fields, size, size))
    out = x.new_empty(images, even, *sides)
    arrays, sizes = (as_rows("x", x, x.shape), full, out), (images, fields, even, *sides, size)
    call("convolve", arrays, (), sizes, threads=threads_for(x))
    return out[:, :outputs]


def _correlate(x: Tensor, gradient: Tensor, size: int) -> Tensor:
    """Return the derivative of <gradient, kernel * x> with respect to the kernel, whose sides have length `size`."""
    (images, fields, *sides), outputs = x.shape, gradient.shape[1]
    even = outputs + outputs % 2
    full = as_rows("gradient", pad(gradient, (0, 0, 0, 0, 0, even - outputs)), (images, even, *sides))
    out = x.new_empty(even, fields, size, size)
    arrays, sizes = (as_rows("x", x, x.shape), full, out), (images, fields, even, *sides, size)
    call("convolve_backward", arrays, (), sizes, threads=threads_for(x))
    return out[:outputs]


@torch.library.custom_op("lmd::convolve", mutates_args=())
def opaque_convolve(x: Tensor, kernel: Tensor) -> Tensor:
    """The compiled convolution as a custom operator of PyTorch."""
    return _convolve(x, kernel).contiguous()


@opaque_convolve.register_fake
def _(x: Tensor, kernel: Tensor) -> Tensor:
    return x.new_empty(len(x), len(kernel), *x.shape[2:])


@torch.library.custom_op("lmd::convolve_backward", mutates_args=())
def opaque_by_kernel(x: Tensor, gradient: Tensor, size: int) -> Tensor:
    """The derivative of the convolution with respect to the kernel, as a custom operator of PyTorch."""
    return _correlate(x, gradient, size)


@opaque_by_kernel.register_fake
def _(x: Tensor, gradient: Tensor, size: int) -> Tensor:
    return x.new_empty(gradient.shape[1], x.shape[1], size, size)
