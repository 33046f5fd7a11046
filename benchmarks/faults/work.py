"""Work of every kind, small and quick or long: what faults are tried on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import lmd
from lmd.operators import gaussian_kernel
from lmd.problems import SVM, Composite, ControlFamily, LeastSquaresFamily, TVDeblurring, TVDenoising, TVInpainting

Work = Callable[[], Any]
"""Gives a tensor, or several, which are the same each time."""


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    """Random numbers from 0 to 1."""
    generator = torch.Generator(device="cpu").manual_seed(seed)
    return torch.rand(*shape, generator=generator, dtype=torch.float32, device="cpu")


def svm(instances: int, features: int, sets: int = 1) -> SVM:
    """A support vector machine without much to separate."""
    x = numbers(sets, instances, features, seed=1) - 0.5
    labels = (numbers(sets, instances, seed=2) > 0.5).float() * 2 - 1
    return SVM(x, labels)


def elastic_net() -> Composite:
    """Sixteen numbers of twelve measurements."""
    from lmd.operators import Identity, Matrix
    from lmd.terms import L1, Squares

    design, measured, start = numbers(12, 16, seed=3), numbers(2, 12, seed=4), numbers(2, 16) * 0
    return Composite(L1(0.1), (Squares(measured, 0.5), Matrix(design)), (Squares(start, 0.5), Identity()), start=start)


def small() -> dict[str, Work]:
    """Every kind of solve, of milliseconds."""
    picture, mask = numbers(40, 48), numbers(40, 48, seed=5) > 0.3
    batch = numbers(2, 3, 24, 32)
    control, _ = ControlFamily(states=2, inputs=1, horizon=4).sample(3, torch.Generator("cpu").manual_seed(0))
    squares, start = LeastSquaresFamily().sample(3, torch.Generator("cpu").manual_seed(0))
    margins = svm(30, 6)
    return {
        "denoise": lambda: lmd.denoise(picture),
        "denoise, colour": lambda: lmd.denoise(numbers(24, 32, 3).numpy(), weight=0.1),
        "denoise, second order": lambda: lmd.denoise(picture, weight=0.1, order=2),
        "denoise, counts": lambda: lmd.denoise(picture * 40, weight=0.1, data="poisson"),
        "denoise, impulses": lambda: lmd.denoise(picture, weight=0.5, data="absolute"),
        "denoise_video": lambda: list(lmd.denoise_video(numbers(3, 24, 32).numpy(), weight=0.1)),
        "inpaint": lambda: lmd.inpaint(picture, mask, weight=0.1),
        "deblur": lambda: lmd.deblur(picture, gaussian_kernel(1.0), weight=0.01),
        "solve, denoising": lambda: lmd.solve(TVDenoising(batch, 0.2), 1e-4).x,
        "solve, isotropic": lambda: lmd.solve(TVDenoising(batch, 0.2, isotropic=True), 1e-4).x,
        "solve, float64": lambda: lmd.solve(TVDenoising(batch.double(), 0.2), 1e-6).x,
        "solve, inpainting": lambda: lmd.solve(TVInpainting(batch, mask[:24, :32], 0.2), 1e-2).x,
        "solve, deblurring": lambda: lmd.solve(TVDeblurring(batch, gaussian_kernel(1.0), 0.02), 1e-2).x,
        "solve, control": lambda: lmd.solve(control, 1e-2, solver=lmd.solvers.ADMM()).x,
        "solve, elastic net": lambda: lmd.solve(elastic_net(), 1e-3).x,
        "solve, SVM": lambda: lmd.solve(margins, 1e-3, x0=numbers(1, 7) * 0).x,
        "run": lambda: lmd.run(lmd.solvers.GradientDescent(0.01), squares, start, 20).x,
        "reference": lambda: lmd.guarantees.optimum(TVDenoising(batch, 0.2)).x,
        "train": trained,
        "nn": lambda: lmd.nn.TVLayer(0.1)(batch),
    }


def trained(updates: int = 4, **settings: Any) -> torch.Tensor:
    """The numbers of a small solver after so many updates."""
    solver = lmd.solvers.LearnedMirrorDescent(lmd.mirrors.Quadratic(2).double(), iterations=3).double()
    lmd.train(solver, LeastSquaresFamily(), updates=updates, batch=8, progress=False, **settings)
    return torch.cat([parameter.detach().flatten() for parameter in solver.parameters()])


def large() -> dict[str, Work]:
    """Solves of more than one thread, of tens of milliseconds."""
    batch, volume = numbers(1, 3, 160, 200), numbers(1, 1, 24, 40, 40)
    kernel, mask = gaussian_kernel(1.5), numbers(160, 200, seed=5) > 0.3
    return {
        "denoising": lambda: lmd.solve(TVDenoising(batch, 0.2), 1e-3).x,
        "denoising, isotropic": lambda: lmd.solve(TVDenoising(batch, 0.2, isotropic=True), 1e-3).x,
        "volume": lambda: lmd.solve(TVDenoising(volume, 0.2), 1e-3).x,
        "second order": lambda: lmd.denoise(batch[0, 0], weight=0.1, order=2),
        "inpainting": lambda: lmd.solve(TVInpainting(batch, mask, 0.2), 1e-2).x,
        "deblurring": lambda: lmd.solve(TVDeblurring(batch, kernel, 0.02), 1e-2).x,
        "SVM": lambda: lmd.solve(svm(400, 60), 1e-3, x0=numbers(1, 61) * 0).x,
        "matrix product": lambda: numbers(400, 400) @ numbers(400, 400),
        "learned": lambda: lmd.run(lmd.zoo.load("denoise-10"), TVDenoising(batch, 0.2), batch, 10).x,
    }


def same(one: Any, other: Any) -> bool:
    """Whether two answers are the same numbers, to the bit."""
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(same(*pair) for pair in zip(one, other, strict=True))
    one, other = (torch.as_tensor(each, device="cpu") for each in (one, other))
    return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())


def near(one: Any, other: Any, relative: float) -> bool:
    """Whether two answers are the same numbers up to a share of their size."""
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(near(*pair, relative) for pair in zip(one, other, strict=True))
    one, other = (torch.as_tensor(each, device="cpu").double() for each in (one, other))
    return one.shape == other.shape and float((one - other).norm()) <= relative * max(1e-300, float(other.norm()))
