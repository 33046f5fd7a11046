"""Random total variation models for benchmarks/truth.py: every misfit and form, masks, boxes, maps, one to three axes.

Data have scales from 1e-12 to 1e12, one for the batch or one for each instance, offsets of 1e7, weights from 1e-4 to
1e4 times what suits them and, more seldom, far beyond.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from truth import (
    LARGEST,
    TOLERANCE,
    Attempt,
    Instance,
    Kind,
    choose,
    composite_reference,
    shade,
    uniform,
    without_offset,
)

import lmd
from lmd.operators import Mask
from lmd.problems import SecondOrderModel, TVModel
from lmd.terms import Absolute, KullbackLeibler, Squares, Term

BATCH = 24
SIZES = ((1,), (2,), (7,), (40,), (1, 1), (1, 6), (5, 4), (8, 8), (2, 2, 2), (1, 3, 4), (4, 3, 5))


def data(generator: torch.Generator, positive: bool, order: int) -> tuple[Tensor, Tensor]:
    """y `(B, C, *size)` in float64, and its unit per instance `(B,)`."""
    size = choose(generator, SIZES)
    if order == 2 and uniform(generator, 0, 1) < 0.6:  # the second order of volumes and signals is not compiled
        size = choose(generator, ((1, 6), (5, 4), (8, 8)))
    numbers = shade(generator, BATCH, choose(generator, (1, 1, 3)), 1, functools.reduce(int.__mul__, size))
    y = numbers.reshape(*numbers.shape[:2], *size)
    y = y.abs() if positive else y
    scales = torch.full((BATCH,), uniform(generator, -12, 12), dtype=torch.float64)
    if uniform(generator, 0, 1) < 0.3:
        scales = -12 + 24 * torch.rand(BATCH, dtype=torch.float64, generator=generator)
    if uniform(generator, 0, 1) < 0.4:
        scales = scales / 12
    offset = choose(generator, (0.0, 0.0, 0.0, 1e3, 1e7))
    unit = 10**scales
    if positive:  # counts have no unit
        unit, y = torch.ones_like(unit), (y * 10 ** uniform(generator, -1, 6)).round()
    return (y.clamp(-LARGEST / unit.max(), LARGEST / unit.max()) + offset) * unit.reshape(-1, *[1] * (y.ndim - 1)), unit


def misfit_of(name: str, y: Tensor, generator: torch.Generator) -> Term:
    if name == "poisson":
        return KullbackLeibler(y, choose(generator, (0.0, 0.0, 1.0)))
    if name == "absolute":
        return Absolute(y, choose(generator, (1.0, 0.3)))
    return Squares(y, choose(generator, (1.0, 0.5)))


def model(name: str, order: int, generator: torch.Generator, dtype: torch.dtype) -> Instance:
    exact, unit = data(generator, name == "poisson", order)
    y = exact.to(dtype)
    suits = unit if name == "squares" else torch.ones_like(unit)
    span = (-4, 4) if uniform(generator, 0, 1) < 0.85 else (-12, 12)
    weight: Any = (suits * 10 ** uniform(generator, *span)).clamp(1e-20, 1e20).to(dtype)
    form: dict[str, Any] = {
        "isotropic": uniform(generator, 0, 1) < 0.5,
        "coupled": uniform(generator, 0, 1) < 0.3,
        "spacing": choose(generator, (None, None, 0.5, 3.0)),
    }
    low, high = float(y.min()), float(y.max())
    wide = choose(generator, (0.0, 1.0, 1e3))
    if uniform(generator, 0, 1) < 0.3 and high > low:
        form["box"] = (low - wide * (high - low), high + wide * (high - low))
        form["box"] = form["box"] if name != "poisson" else (max(0.0, form["box"][0]), form["box"][1])
    if order == 2:
        problem: Any = SecondOrderModel(
            misfit_of(name, y, generator), weight, ratio=choose(generator, (2.0, 0.5)), **form
        )
        return without_offset(problem, problem.start())
    if uniform(generator, 0, 1) < 0.3:  # Huber's length has the unit of a difference
        form["huber"] = float(unit.median()) * 10 ** uniform(generator, -2, 1)
    if uniform(generator, 0, 1) < 0.2:
        noise = torch.rand(len(y), 1, *y.shape[2:], generator=generator, dtype=torch.float64).to(dtype)
        weight = weight.reshape(-1, *[1] * (y.ndim - 1)) * (0.1 + noise)
    if uniform(generator, 0, 1) < 0.3:
        mask = torch.rand(y.shape[2:], generator=generator) < choose(generator, (0.0, 0.5, 0.9))
        mask.view(-1)[0] = True
        form["forward"] = Mask(mask[None, None])
        form.setdefault("box", (low, high) if high > low else (low - 1, high + 1))
    problem = TVModel(misfit_of(name, y, generator), weight, **form)
    return without_offset(problem, problem.start())


def by_solve(generator: torch.Generator, instance: Instance) -> dict[str, Any]:
    """The default, to the usual tolerance or another."""
    tolerance = choose(generator, (TOLERANCE, TOLERANCE, 10 ** uniform(generator, -9, -2)))
    result = lmd.solve(instance.problem, tolerance)
    return {type(result.solver).__name__: lambda _: Attempt(result, tolerance, default=True)}


KINDS = {
    f"model of order {order}, {name}": Kind(
        functools.partial(model, name, order), by_solve, composite_reference, default=False
    )
    for order in (1, 2)
    for name in ("squares", "absolute", "poisson")
}
SHARES = {name: 6 if "order 2" in name else 30 for name in KINDS}
