"""The functions for arrays, for benchmarks/truth.py: denoise, inpaint, deblur, reconstruct, denoise_video.

Each is called on arrays of every dtype and layout, with scales from 1e-12 to 1e12, and held to a problem that is made
here, in float64, of the array and the weight. `reconstruct` gets functions that compute in float32 or float64, and
adjoints that are slightly off.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from truth import Attempt, Instance, Kind, choose, composite_reference, shade, uniform

import lmd
from lmd.imaging import Info
from lmd.operators import Matrix, gaussian_kernel
from lmd.problems import SecondOrderModel, TVDeblurring, TVDenoising, TVInpainting, TVModel
from lmd.terms import Absolute, KullbackLeibler, Squares

BATCH = 4
WHITE = {torch.uint8: 255.0, torch.uint16: 65535.0}


def images(generator: torch.Generator, dtype: torch.dtype, axes: int = 0, least: int = 1) -> Tensor:
    """Images `(B, C, *size)` of a dtype that people have."""
    sizes = [(1, 1), (3, 9), (8, 8), (12, 7), (30,), (6, 5, 4)]
    size = choose(generator, [each for each in sizes if axes in (0, len(each)) and min(each) >= least])
    flat = shade(generator, BATCH, choose(generator, (1, 3)), 1, int(np.prod(size)))
    y = flat.clamp(-1, 2).reshape(*flat.shape[:2], *size)
    noise = torch.randn(y.shape, dtype=torch.float64, generator=generator)
    y = y + choose(generator, (0.0, 0.1)) * noise
    kind = choose(generator, ("own", "own", "own", "bytes", "words"))
    if kind != "own":
        white = 255 if kind == "bytes" else 65535
        return (y.clamp(0, 1) * white).round().to(torch.uint8 if kind == "bytes" else torch.uint16)
    return ((y + choose(generator, (0.0, 0.0, 10.0, 1e4))) * 10 ** uniform(generator, -12, 12)).to(dtype)


def exactly(y: Tensor) -> Tensor:
    return y.double() / WHITE.get(y.dtype, 1.0)


def weight_of(generator: torch.Generator, y: Tensor, has_unit: bool = True) -> Any:
    """ "auto", a number, or one per image."""
    exact = exactly(y)
    contrast = float(exact.max() - exact.min()) or float(exact.abs().max()) or 1.0
    weight = (contrast if has_unit else 1.0) * 10 ** uniform(generator, -3, 1)
    return choose(generator, ("auto", weight, weight, torch.full((len(y),), weight, dtype=torch.float64)))


@dataclass(frozen=True, kw_only=True)
class Answered(Instance):
    """An instance that a function has answered already."""

    attempt: Attempt


def answered(exact: Any, answer: Any, info: Info, tolerance: float, dtype: torch.dtype | None = None) -> Answered:
    """What was answered, beside the problem that it should be an answer to; the array itself has to be finite.

    Values are right to the rounding of the `dtype`; None is the one that they come in, float32 for arrays of float32
    that are solved for in units of 1.
    """
    dtype = dtype or info.result.values.dtype
    numbers = answer if isinstance(answer, np.ndarray) else answer.double().numpy()
    assert np.isfinite(numbers.astype(float)).all(), "an answer that is not finite"
    attempt = Attempt(info.result, tolerance, default=True)
    return Answered(exact, exact.start().to(dtype), exact, torch.zeros((), dtype=torch.float64), attempt=attempt)


def told(info: Info, exact: Tensor) -> Tensor:
    return torch.as_tensor(info.weight, dtype=torch.float64).expand(len(exact)).clone()


def tolerance_of(generator: torch.Generator) -> float:
    return choose(generator, (1e-4, 1e-4, 1e-3, 1e-6))


def denoise(generator: torch.Generator, dtype: torch.dtype) -> Answered:
    y, tolerance = images(generator, dtype), tolerance_of(generator)
    data, order = choose(generator, ("squares", "squares", "poisson", "absolute")), choose(generator, (1, 1, 1, 2))
    y = y.abs() if data == "poisson" and y.dtype.is_floating_point else y
    isotropic, coupled = uniform(generator, 0, 1) < 0.4, uniform(generator, 0, 1) < 0.3
    spacing = choose(generator, (None, None, 2.0))
    form: dict[str, Any] = {"isotropic": isotropic, "coupled": coupled, "spacing": spacing}
    exact = exactly(y)
    huber = 0.05 * float(exact.max() - exact.min()) if order == 1 and uniform(generator, 0, 1) < 0.3 else 0.0
    weight = weight_of(generator, y, data == "squares")
    answer, info = lmd.denoise(y, weight, data=data, order=order, huber=huber, tolerance=tolerance, info=True, **form)
    misfit = {"squares": Squares, "poisson": KullbackLeibler, "absolute": Absolute}[data](exact)
    model = SecondOrderModel(misfit, told(info, exact), **form) if order == 2 else None
    model = model or TVModel(misfit, told(info, exact), huber=huber, **form)
    return answered(model, answer, info, tolerance)


def inpaint(generator: torch.Generator, dtype: torch.dtype) -> Answered:
    y, tolerance = images(generator, dtype), tolerance_of(generator)
    mask = torch.rand(y.shape[2:], generator=generator) < choose(generator, (0.3, 0.7, 1.0))
    mask.view(-1)[0] = True
    whole = mask.expand(y.shape)
    isotropic, weight = uniform(generator, 0, 1) < 0.4, weight_of(generator, y)
    answer, info = lmd.inpaint(y, whole, weight, isotropic=isotropic, tolerance=tolerance, info=True)
    exact = exactly(y)
    return answered(TVInpainting(exact, whole, told(info, exact), isotropic), answer, info, tolerance)


def deblur(generator: torch.Generator, dtype: torch.dtype) -> Answered:
    y, tolerance = images(generator, dtype, axes=2, least=7), choose(generator, (1e-4, 1e-3))
    exact = exactly(y)
    low, high = float(exact.min()), float(exact.max())
    box = (low, high) if high > low else (low - 1, high + 1)
    kernel, isotropic = gaussian_kernel(choose(generator, (0.5, 1.0))), uniform(generator, 0, 1) < 0.4
    border, weight = choose(generator, ("replicate", "circular")), weight_of(generator, y)
    answer, info = lmd.deblur(
        y, kernel, weight, border=border, box=box, isotropic=isotropic, tolerance=tolerance, info=True
    )
    model = TVDeblurring(exact, kernel.double(), told(info, exact), border, isotropic, box=box)
    return answered(model, answer, info, tolerance)


def reconstruct(generator: torch.Generator, dtype: torch.dtype) -> Answered:
    """Functions, in float64 or float32, with an adjoint that is right or slightly off."""
    n, m = choose(generator, ((5, 4), (24, 24), (30, 12), (200, 60)))
    A = torch.randn(m, n, dtype=torch.float64, generator=generator) * 10 ** uniform(generator, -3, 3)
    A = A.to(dtype).double()
    wrong = A + choose(generator, (0.0, 0.0, 1e-12, 1e-8, 1e-5, 1e-3)) * A.abs().mean() * torch.randn(
        m, n, dtype=torch.float64, generator=generator
    )
    unit = 10 ** uniform(generator, -12, 12)
    x = unit * (torch.arange(n) * 3 // n % 2).double()
    y = A @ x + 0.02 * (A @ x).norm() / m**0.5 * torch.randn(m, dtype=torch.float64, generator=generator)
    weight, tolerance = float((A.T @ y).abs().max()) * 10 ** uniform(generator, -4, -1), choose(generator, (1e-3, 1e-4))
    forward: Any = in_torch(A, dtype)
    adjoint: Any = in_torch(wrong.T, dtype)
    given: Any = y.to(dtype)
    if uniform(generator, 0, 1) < 0.5:
        given, forward, adjoint = given.numpy(), in_numpy(A, dtype), in_numpy(wrong.T, dtype)
    answer, info = lmd.reconstruct(
        given, forward, adjoint, shape=(n,), weight=weight, box=(0.0, unit), tolerance=tolerance, info=True
    )
    exact = y.to(dtype).double()[None, None]
    model = TVModel(Squares(exact), weight, forward=Channelwise(A), size=(n,), box=(0.0, unit))
    return answered(model, answer, info, tolerance, dtype)


def in_torch(A: Tensor, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    matrix = A.to(dtype)
    return lambda x: matrix @ x


def in_numpy(A: Tensor, dtype: torch.dtype) -> Callable[[np.ndarray], np.ndarray]:
    matrix = A.to(dtype).numpy()
    return lambda x: matrix @ x.astype(matrix.dtype)


class Channelwise(Matrix):
    """A matrix on `(B, C, n)`."""

    def _apply(self, x: Tensor) -> Tensor:
        return x @ self.A.mT.to(x)

    def _adjoint(self, z: Tensor) -> Tensor:
        return z @ self.A.to(z)


def video(generator: torch.Generator, dtype: torch.dtype) -> Answered:
    """One of the frames."""
    y, tolerance = images(generator, dtype, axes=2)[:, :1], choose(generator, (1e-4, 1e-3))
    frames = torch.stack([y[0, 0]] * 2 + [each[0] for each in y[1:]]).numpy()
    weight = weight_of(generator, y)
    weight = weight if isinstance(weight, (str, float)) else float(weight[0])
    answers, infos = lmd.denoise_video(frames, weight, tolerance=tolerance, info=True)
    index = choose(generator, range(len(frames)))
    exact = exactly(torch.from_numpy(frames[index]))[None, None]
    return answered(TVDenoising(exact, told(infos[index], exact)), answers[index], infos[index], tolerance)


def by_call(name: str) -> Callable[[torch.Generator, Instance], dict[str, Any]]:
    return lambda generator, instance: {name: lambda each: each.attempt}


KINDS = {
    name: Kind(draw, by_call(name), composite_reference, default=False)
    for name, draw in {
        "lmd.denoise": denoise,
        "lmd.inpaint": inpaint,
        "lmd.deblur": deblur,
        "lmd.reconstruct": reconstruct,
        "lmd.denoise_video": video,
    }.items()
}
SHARES = {"lmd.denoise": 10, "lmd.inpaint": 10, "lmd.deblur": 4, "lmd.reconstruct": 3, "lmd.denoise_video": 6}
