"""Compiled code for the CPU: how it is found and called, and convolutions of few channels.

C is compiled when the package is installed, where there is a compiler: once for every x86-64 or ARM processor, and
again for those with AVX2 and with AVX-512. Nothing is compiled when a program runs. The threads are PyTorch's own,
as many as `torch.get_num_threads()` says. `LMD_KERNELS=0` in the environment leaves them out.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import itertools
import os
import platform
import warnings
from collections.abc import Callable, Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import conv1d, conv2d, conv3d, pad

from lmd.core.checks import shape_of
from lmd.errors import InputError

SMALL = 20_000  # pixels; fewer are not worth a second thread
Inputs = dict[str, tuple[Tensor | None, tuple[int, ...]]]
"""What goes to C in this order, by the name it has for people: a tensor, or None, and the shape that C takes it for."""

BUILDS = {"AVX512": ("_native_avx512", "_native_avx2", "_native"), "AVX2": ("_native_avx2", "_native")}
"""What may run on a processor, by PyTorch's name for what it can do; the best first."""

PLAIN = ("_native",)  # what runs on every processor of its kind
INSTRUCTIONS = {"_native_avx512": "AVX-512", "_native_avx2": "AVX2", "_native": f"all of {platform.machine()}"}


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled code for this processor; None where there is none."""
    if os.environ.get("LMD_KERNELS", "1") == "0":
        return None
    builds = BUILDS.get(torch.backends.cpu.get_cpu_capability(), PLAIN)
    found = next((found for build in builds if (found := load(build)) is not None), None)
    if found is None:
        advice = "install a wheel, or install again where there is a C compiler; LMD_KERNELS=0 says nothing"
        warnings.warn(f"no compiled kernels: the same answers take longer; {advice}", RuntimeWarning, stacklevel=2)
    return found


def module() -> Any:
    """The same as a module, for what Python calls without ctypes."""
    return importlib.import_module(f"{__name__}.{_build()}")


def check_code(code: int, what: str) -> None:
    """Raise what a compiled solve ended with, if it was no answer: a signal, or no memory for `what`."""
    if code and code & module().INTERRUPTED:  # a signal handler raised something, as Ctrl-C does
        module().raise_again()
    if code:
        raise MemoryError(f"no memory for {what}")


def _build() -> str | None:
    """The name of the build in use."""
    found = library()
    return None if found is None else Path(found._name).name.split(".")[0]


def instructions() -> str | None:
    """The instruction set that the compiled code in use was made for; None where there is none."""
    build = _build()
    return None if build is None else INSTRUCTIONS[build]


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


FOUND = library() is not None  # known before anything traces this module, which may not look for it
MAX_KERNEL = module().LARGEST if FOUND else 0  # the widest kernel that is compiled for


def there() -> bool:
    """Whether there is compiled code, here and now."""
    return FOUND if torch.compiler.is_compiling() else library() is not None


def _end_threads() -> None:
    """End the threads of OpenMP that this thread has, which start again with its next parallel work.

    GNU's OpenMP keeps them, a fork has none of them, and its first parallel work would wait for them for ever.
    """
    pause = getattr(ctypes.CDLL(torch._C.__file__), "omp_pause_resource_all", None)  # of the OpenMP of PyTorch
    if pause is not None:
        pause(2)  # omp_pause_hard of omp.h


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_end_threads)


def serves(*tensors: Tensor) -> bool:
    """Whether a compiled step can stand in here: float32 on the CPU, and nothing is recorded."""
    if any(tensor.dtype != torch.float32 or tensor.device.type != "cpu" for tensor in tensors):
        return False
    recording = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    return not recording and there()


def convolve(x: Tensor, kernel: Tensor) -> Tensor:
    """Convolution with zeros around: x `(n, I, *size)`, kernel `(O, I, k, ...)` of an odd k, to `(n, O, *size)`.

    Along one axis, two or three. Compiled along two for few channels, where PyTorch's own is slow forward and slower
    backward; elsewhere it is PyTorch's own.
    """
    fits = x.dtype == kernel.dtype == torch.float32 and x.device.type == "cpu" and x.ndim == 4
    if not (fits and there() and kernel.shape[-1] <= MAX_KERNEL):
        own = {3: conv1d, 4: conv2d, 5: conv3d}[x.ndim]
        return own(x, kernel, padding=kernel.shape[-1] // 2)
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
            by_kernel = _by_kernel(x, gradient, kernel)
        return by_x, by_kernel


def _even(x: Tensor, kernel: Tensor) -> Tensor:
    """The convolution, its outputs computed in pairs."""
    outputs, size = kernel.shape[0], kernel.shape[-1]
    images, fields, height, width = x.shape
    full = pad(kernel, (0, 0, 0, 0, 0, 0, 0, outputs % 2))
    inputs: Inputs = {"x": (x, x.shape), "kernel": (full, (len(full), fields, size, size))}
    sizes = (images, fields, len(full), height, width, size)
    (out,) = call("lmd_convolve", inputs, None, sizes, ((images, len(full), height, width),))
    return out[:, :outputs]


def _by_kernel(x: Tensor, gradient: Tensor, kernel: Tensor) -> Tensor:
    """The derivative of <gradient, kernel * x> by the kernel, its outputs computed in pairs."""
    outputs, size = kernel.shape[0], kernel.shape[-1]
    images, fields, height, width = x.shape
    full = pad(gradient, (0, 0, 0, 0, 0, outputs % 2))
    even = outputs + outputs % 2
    inputs: Inputs = {"x": (x, x.shape), "gradient": (full, (images, even, height, width))}
    sizes = (images, fields, even, height, width, size)
    (found,) = call("lmd_convolve_backward", inputs, None, sizes, ((even, fields, size, size),))
    return found[:outputs]


def call(
    name: str,
    inputs: Inputs,
    scale: float | None,
    sizes: tuple[int, ...],
    outputs: tuple[tuple[int, ...], ...],
    *,
    kind: torch.dtype = torch.float32,
) -> list[Tensor]:
    """Call a compiled function: the one place where memory goes to C, which knows pointers only.

    Inputs are refused unless they are float32 on the CPU and of the shape that is named, and copied unless they lie
    row by row. Outputs are made here, row by row whatever the inputs were. The first input says how much work it is.
    Where `torch.compile` or `torch.export` traces it, it is an operator of PyTorch's: `opaque`.
    """
    held = [_rows(argument, tensor, shape) for argument, (tensor, shape) in inputs.items()]  # alive until it is over
    if not torch.compiler.is_compiling():
        return _call(name, held, scale, sizes, outputs, kind)
    flat, ranks = [size for shape in outputs for size in shape], [len(shape) for shape in outputs]
    found: list[Tensor] = opaque(name, held, scale, sizes, flat, ranks, kind == torch.float64)
    return found


def _call(
    name: str,
    held: Sequence[Tensor | None],
    scale: float | None,
    sizes: Sequence[int],
    outputs: Sequence[Sequence[int]],
    kind: torch.dtype,
) -> list[Tensor]:
    code = library()
    if code is None:
        raise RuntimeError("there are no compiled kernels here: ask `serves` before")
    made = [torch.empty(tuple(shape), dtype=kind, device="cpu") for shape in outputs]
    work = next(tensor.numel() for tensor in held if tensor is not None)
    threads = torch.get_num_threads() if work >= SMALL else 1
    scales = () if scale is None else (scale,)
    function = _function(code, name, len(held), len(scales), len(sizes), len(made))
    given, found = ([tensor.data_ptr() if tensor is not None else None for tensor in side] for side in (held, made))
    check_code(function(*given, *scales, *sizes, threads, *found), "the working rows of a compiled step")
    return made


@torch.library.custom_op("lmd::call", mutates_args=())
def opaque(
    name: str,
    held: Sequence[Tensor | None],
    scale: float | None,
    sizes: Sequence[int],
    outputs: Sequence[int],
    ranks: Sequence[int],
    double: bool,
) -> list[Tensor]:
    """`call` as an operator that programs are traced through: `outputs` has all their sizes, `ranks` how many each."""
    return _call(name, held, scale, sizes, _split(outputs, ranks), torch.float64 if double else torch.float32)


@opaque.register_fake
def _(
    name: str,
    held: Sequence[Tensor | None],
    scale: float | None,
    sizes: Sequence[int],
    outputs: Sequence[int],
    ranks: Sequence[int],
    double: bool,
) -> list[Tensor]:
    kind = torch.float64 if double else torch.float32
    return [torch.empty(tuple(shape), dtype=kind, device="cpu") for shape in _split(outputs, ranks)]


def _split(sizes: Sequence[int], ranks: Sequence[int]) -> list[Sequence[int]]:
    ends = list(itertools.accumulate(ranks))
    return [sizes[end - rank : end] for end, rank in zip(ends, ranks, strict=True)]


def _rows(argument: str, tensor: Tensor | None, shape: tuple[int, ...]) -> Tensor | None:
    """The numbers of a tensor as C reads them: float32 on the CPU, row by row, of this shape."""
    if tensor is None:
        return None
    if tensor.dtype != torch.float32 or tensor.device.type != "cpu":
        raise InputError(
            argument, f"{tensor.dtype} on {tensor.device}", "torch.float32 on the CPU, as compiled steps are"
        )
    if tensor.shape != shape:
        raise InputError(argument, f"shape {shape_of(tensor)}", f"shape {tuple(shape)}")
    return tensor.detach().resolve_neg().contiguous()


@functools.cache
def _function(code: ctypes.CDLL, name: str, inputs: int, scales: int, sizes: int, outputs: int) -> Callable[..., int]:
    module()  # which answers signals
    function = getattr(code, name)
    function.argtypes = (
        *(ctypes.c_void_p,) * inputs,
        *(ctypes.c_float,) * scales,
        *(ctypes.c_long,) * sizes,
        ctypes.c_int,
        *(ctypes.c_void_p,) * outputs,
    )
    return cast(Callable[..., int], function)
