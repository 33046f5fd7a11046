"""Compiled steps for the CPU: the same numbers as PyTorch's to rounding, in one pass; without them only time changes.

`tv.c` is compiled when the package is installed, where there is a C compiler: once for every x86-64 or ARM processor,
and again for those with AVX2 and with AVX-512. Nothing is compiled when a program runs. The threads are PyTorch's own,
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
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import conv1d, conv2d, conv3d, pad

from lmd.core.checks import shape_of
from lmd.errors import InputError

SMALL = 20_000
"""Fewer pixels than this are not worth a second thread."""

LARGEST = 9
"""The largest kernel that is compiled for."""

Inputs = dict[str, tuple[Tensor | None, tuple[int, ...]]]
"""What goes to C in this order, by the name it has for people: a tensor, or None, and the shape that C takes it for."""

NOTHING = (0,)
"""The shape of an output that is not asked for: NULL to C."""

BUILDS = {"AVX512": ("_tv_avx512", "_tv_avx2", "_tv"), "AVX2": ("_tv_avx2", "_tv")}
"""What may run on a processor, by PyTorch's name for what it can do; the best first."""

PLAIN = ("_tv",)
"""What runs on every processor of its kind."""


INSTRUCTIONS = {"_tv_avx512": "AVX-512", "_tv_avx2": "AVX2", "_tv": f"all of {platform.machine()}"}
"""What the builds were compiled for."""


NORMS = ("l1", "L1", "lengths", "GroupNorm", "Huber")
"""What total variation is made of."""

TABLE: dict[tuple[str, ...], frozenset[str]] = {
    ("squares", "l1", "differences"): frozenset({"dual_steps", "tv_sums", "fgp", "smoothed_gradient"}),
    ("squares", "lengths", "differences"): frozenset({"fgp"}),
    ("squares", "GroupNorm", "differences"): frozenset({"fgp", "model"}),
    ("kept squares", "l1", "differences"): frozenset({"saddle_steps", "pdhg", "smoothed_gradient"}),
    ("kept squares", "lengths", "differences"): frozenset({"pdhg"}),
    ("l1", "differences"): frozenset({"tv_sums"}),
    **{(f, g, "Differences"): frozenset({"model"}) for f in ("squares", "boxed squares") for g in NORMS},
    **{("squares", g, "differences"): frozenset({"model"}) for g in ("L1", "Huber")},
    **{("boxed squares", g, "differences"): frozenset({"model"}) for g in NORMS},
    **{("Stacked", g, "Slopes", g, "Bends"): frozenset({"second"}) for g in NORMS},
    **{("Box", g, field): frozenset({"beside"}) for g in NORMS for field in ("differences", "Differences")},
    **{
        (f"boxed {f}", g, field): frozenset({"relaxed"})
        for f in ("Squares", "KullbackLeibler", "kept KullbackLeibler", "Absolute")
        for g in NORMS
        for field in ("differences", "Differences")
    },
}
"""Which functions here serve which problems, by the names of their parts: f, g and K of f(x) + g(Kx), or g and K."""


def has(function: str, parts: tuple[str, ...]) -> bool:
    """Whether there is compiled code of that name for problems of these parts."""
    return function in TABLE.get(parts, ())


INTERRUPTED = 2
"""What compiled solves return where a signal handler raised something, as Ctrl-C does: as in threads.h."""


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
    if code & INTERRUPTED:
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


FOUND = library() is not None
"""Whether there is compiled code: known before anything traces this module, which may not look for it."""


def there() -> bool:
    """Whether there is compiled code, here and now."""
    return FOUND if torch.compiler.is_compiling() else library() is not None


def _end_threads() -> None:
    """End the threads of OpenMP that this thread has, which start again with its next parallel work.

    GNU's OpenMP keeps them, a fork has none of them, and its first parallel work would wait for them for ever.
    """
    pause = getattr(ctypes.CDLL(torch._C.__file__), "omp_pause_resource_all", None)  # of the OpenMP of PyTorch
    if pause is not None:
        pause(_PAUSE_HARD)


_PAUSE_HARD = 2
"""What omp.h calls omp_pause_hard."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_end_threads)


def serves(*tensors: Tensor) -> bool:
    """Whether a compiled step can stand in here: float32 on the CPU, and nothing is recorded."""
    if any(tensor.dtype != torch.float32 or tensor.device.type != "cpu" for tensor in tensors):
        return False
    recording = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    return not recording and there()


def dual_steps(
    x: Tensor,
    p: Tensor | None,
    before: Tensor | None,
    noisy: Tensor,
    bound: float | Tensor,
    gamma: float,
    kernels: Tensor,
    *,
    every: bool = False,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """p_{k+n} `(B, C, 2, H, W)`, p_{k+n-1} and x_{k+n} `(B, C, H, W)` of `LearnedDual`, from x_k, p_k and p_{k-1}.

    There is a step for each of the kernels `(n, 2, 4, s, s)`. None is 0, where it is given; as p_{k+n-1} it is p_k.
    With `every` the third are x_{k+1}, ..., x_{k+n}, `(n, B, C, H, W)`.
    """
    image, field, sizes = _shapes(x)
    steps, size = len(kernels), kernels.shape[-1]
    inputs: Inputs = {
        "x": (x, image),
        "p": (p, field),
        "before": (before, field),
        "noisy": (noisy, image),
        "kernels": (kernels, (steps, 2, 4, size, size)),
        "bound": _per_plane(bound, x),
    }
    outputs = (field, field if steps > 1 else NOTHING, (steps, *image) if every else image)
    name = "lmd_dual_trace" if every else "lmd_dual_steps"
    new_p, last_p, new_x = call(name, inputs, gamma, (*sizes, size, steps), outputs)
    return new_p, last_p if steps > 1 else None, new_x


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
    x, moved, p, dual_moved = start
    image, field, (planes, height, width) = _shapes(x)
    steps, size, primal_size = len(kernels[0]), kernels[0].shape[-1], kernels[1].shape[-1]
    masks = 1 if mask.shape[1] == 1 else image[1]
    inputs: Inputs = {
        "x": (x, image),
        "moved": (moved, image),
        "p": (p, field),
        "dual_moved": (dual_moved, field),
        "noisy": (noisy, image),
        "mask": (mask, (image[0], masks, height, width)),
        "dual kernels": (kernels[0], (steps, 2, 6, size, size)),
        "primal kernels": (kernels[1], (steps, 2, 3, primal_size, primal_size)),
        "bound": _per_plane(bound, x),
        "low": (box[0], (*image[:2], 1, 1)),
        "high": (box[1], (*image[:2], 1, 1)),
    }
    sizes = (planes, image[1] // masks, height, width, size, primal_size, steps)
    new_x, new_moved, new_p, new_dual_moved = call(
        "lmd_saddle_steps", inputs, smoothness, sizes, (image, image, field, field)
    )
    return new_x, new_moved, new_p, new_dual_moved


class TVSums(NamedTuple):
    """Sums over each image `(B,)`, in float64: what values, gaps and their rounding are made of."""

    length: Tensor
    """|Kx|."""

    slack: Tensor
    """b |Kx| - <Kx, p>."""

    square: Tensor
    """(x - y + inverse K'p)^2."""

    misfit: Tensor
    """(x - y)^2."""

    dual: Tensor
    """p^2."""


def tv_sums(x: Tensor, p: Tensor | None, y: Tensor | None, bound: float | Tensor, inverse: float = 1.0) -> TVSums:
    """The sums of images x, y `(B, C, H, W)` and a dual field p `(B, C, 2, H, W)`, taken within the bound b.

    Evaluated in float64 from float32 numbers. Without p it is 0, without y there are no squares but those of p.
    """
    image, field, sizes = _shapes(x)
    inputs: Inputs = {"x": (x, image), "p": (p, field), "y": (y, image), "bound": _per_plane(bound, x)}
    (out,) = call("lmd_tv_sums", inputs, inverse, sizes, ((*image[:2], len(TVSums._fields)),), kind=torch.float64)
    return TVSums(*out.sum(dim=1).unbind(dim=1))


def smoothed_gradient(
    x: Tensor, y: Tensor, mask: Tensor | None, bound: float | Tensor, smoothness: float, widths: Tensor, shares: Tensor
) -> tuple[Tensor, Tensor]:
    r"""L Z(x - y) + K'p `(B, C, H, W)` and p = \sum_j shares_j clip(Kx / widths_j, -b, b) `(B, C, 2, H, W)`.

    The gradient of smoothed total variation. L is the `smoothness`, Z the mask `(B, 1, H, W)` or `(B, C, H, W)`, None
    where nothing is lost; `widths` and `shares` are `(J,)`.
    """
    image, field, (planes, height, width) = _shapes(x)
    masks = 1 if mask is None or mask.shape[1] == 1 else image[1]
    inputs: Inputs = {
        "x": (x, image),
        "y": (y, image),
        "mask": (mask, (image[0], masks, height, width)),
        "bound": _per_plane(bound, x),
        "widths": (1 / widths, tuple(widths.shape[:1])),
        "shares": (shares, tuple(widths.shape[:1])),
    }
    sizes = (planes, image[1] // masks, height, width, len(widths))
    gradient, p = call("lmd_smoothed_gradient", inputs, smoothness, sizes, (image, field))
    return gradient, p


def convolve(x: Tensor, kernel: Tensor) -> Tensor:
    """Convolution with zeros around: x `(n, I, *size)`, kernel `(O, I, k, ...)` of an odd k, to `(n, O, *size)`.

    Along one axis, two or three. Compiled along two for few channels, where PyTorch's own is slow forward and slower
    backward; elsewhere it is PyTorch's own.
    """
    fits = x.dtype == kernel.dtype == torch.float32 and x.device.type == "cpu" and kernel.shape[-1] <= LARGEST
    if not fits or x.ndim != 4 or not there():
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


def _shapes(x: Tensor) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, int, int]]:
    """The shape of images `(B, C, H, W)`, of their dual fields `(B, C, 2, H, W)`, and (B C, H, W)."""
    if x.ndim != 4:
        raise InputError("x", f"shape {shape_of(x)}", "images (B, C, H, W)")
    batch, channels, height, width = x.shape
    return (batch, channels, height, width), (batch, channels, 2, height, width), (batch * channels, height, width)


def _per_plane(bound: float | Tensor, x: Tensor) -> tuple[Tensor, tuple[int]]:
    """The bound of each image and channel `(B C,)`, and that shape."""
    batch, channels = x.shape[:2]
    each = (
        bound.repeat_interleave(channels, dim=-1)
        if isinstance(bound, Tensor)
        else x.new_full((batch * channels,), bound)
    )
    return each, (batch * channels,)


def per_image(bound: float | Tensor, y: Tensor) -> Tensor:
    """The bound of each image `(B,)`."""
    return bound if isinstance(bound, Tensor) else y.new_full((len(y),), bound)


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
