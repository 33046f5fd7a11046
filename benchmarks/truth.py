"""Are the claims true? Random instances of every problem, form, dtype and solver, beside true minima in float64.

    python benchmarks/truth.py --instances 200000 [--seed 0] [--only NAME] [--workers 2]

Kinds of problems are here and in the `KINDS` of benchmarks/truth_*.py. Scales go from 1e-12 to 1e12; images are
constant, of one pixel, checkerboards, text, ramps, 0 to 255, negative, impulses, with offsets that leave one or two
units of the last place for contrast; masks keep one pixel. What is counted, for each kind and solver:

    false        certificates below the true gap, lower bounds above the minimum, tolerances that are not reached
    value        values that are not those of the point
    worse        guarded answers above those of their fall-back, answers by name above their start
    not finite   points, values or bounds that are no numbers, and runs that failed though they were guarded
    unproven     answers of a default that are neither proven to their tolerance nor STALLED; all iterations may be
                 spent on the way to a tolerance below 1e-4, if 1e-4 is proven

The true minimum is at most the lowest value that anything reached on the instance: every solver of this script, far
more iterations in float64, constants. F is evaluated in float64 on images without their offset: nothing is lost.
Exit code 1 where anything was counted.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import functools
import importlib
import itertools
import math
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import lmd
from lmd.guarantees import DescentSafeguard, Safeguard
from lmd.guarantees.safeguard import default_fallback
from lmd.mirrors import Entropic, Euclidean, EuclideanSimplex, Quadratic
from lmd.operators import gaussian_kernel
from lmd.problems import (
    SVM,
    Lasso,
    LeastSquares,
    LinearClassifier,
    Problem,
    TVDeblurring,
    TVDenoising,
    TVInpainting,
    TVTomography,
)
from lmd.problems.duality import relative_gap
from lmd.problems.simplex import KLDivergence, SquaredDistance, uniform_simplex
from lmd.solvers import (
    FGP,
    LBFGS,
    PDHG,
    GradientDescent,
    LazyMirrorDescent,
    MirrorDescent,
    Nesterov,
    Result,
    Solver,
    Status,
)
from lmd.solvers.classical.interior_point import InteriorPoint

BATCH = 48
COUNTS = ("false", "value", "worse", "not finite", "unproven")
TOLERANCE = 1e-4
"""What `lmd.solve` is asked for with its default solver."""

TRY_DEFAULTS = True
"""Whether `lmd.solve` is tried beside the solvers of a kind; tests leave it out."""

SPENT = 30_000
"""Iterations after which a default may end on the way to less than `TOLERANCE`: `lmd.solve`'s are 100 000."""

REFERENCE = 600
"""Iterations of the reference, in float64."""


@dataclass(frozen=True)
class Instance:
    """A batch of problems as a solver meets them, and as the truth is told about them."""

    problem: Problem
    x0: Tensor
    exact: Problem
    """The same in float64, of points minus the `offset`: f(x) is exact.value(x - offset)."""

    offset: Tensor
    """`(B, 1, ...)`, float64."""

    guesses: tuple[Tensor, ...] = ()
    """Points without the offset that may be good ones."""

    def value(self, x: Tensor) -> Tensor:
        return self.exact.value(x.double() - self.offset)

    def told(self, x: Tensor) -> Tensor:
        """What a result should say of x, which `value` is above where x violates constraints by rounding."""
        return self.value(x)


class DomainInstance(Instance):
    """An instance over a domain, of which results tell f(x) for an x that is outside by rounding."""

    def nearest(self, x: Tensor) -> Tensor:
        """The point of the domain that is meant by x, in float64."""
        domain = self.exact.domain
        return x.double() if domain is None else domain.nearest(x.double())

    def value(self, x: Tensor) -> Tensor:
        return super().value(self.nearest(x))

    def told(self, x: Tensor) -> Tensor:
        return super().value(x)


@dataclass(frozen=True)
class Attempt:
    """An answer, and what it has to hold to."""

    result: Result
    tolerance: float | None = None
    """The relative gap that was asked for."""

    beside: Result | None = None
    """The run of the fall-back alone, where the solver is guarded."""

    guarded: bool = False
    """Whether it may not be worse than the start, nor fail."""

    default: bool = False
    """Whether it has to end proven or STALLED."""


Call = Callable[[Instance], Attempt]
"""A public function on an instance."""


@dataclass(frozen=True)
class Kind:
    """Something to be tried: instances, solvers or calls for them, and how to come near to their minimum."""

    draw: Callable[[torch.Generator, torch.dtype], Instance]
    solvers: Callable[[torch.Generator, Instance], Mapping[str, Solver[Any] | Call]]
    reference: Callable[[Problem], Solver[Any]] | None
    """None where the `guesses` of an instance are near to the minimum."""

    default: bool = True
    """Whether `lmd.solve` with its default solver is tried as well."""


def solve_by_default(instance: Instance, tolerance: float = TOLERANCE) -> Attempt:
    return Attempt(lmd.solve(instance.problem, tolerance, x0=instance.x0), tolerance, default=True)


LARGEST = 1e15
"""Of data, impulses included: squares of more are too much for float32."""


def uniform(generator: torch.Generator, low: float, high: float) -> float:
    return low + (high - low) * float(torch.rand((), dtype=torch.float64, generator=generator))


def choose(generator: torch.Generator, choices: Any) -> Any:
    return choices[int(torch.randint(len(choices), (), generator=generator))]


def shade(generator: torch.Generator, batch: int, channels: int, height: int, width: int) -> Tensor:
    """Images with values of about 0 to 1, one kind for each of the batch, float64."""
    rows, columns = torch.arange(height)[:, None].double(), torch.arange(width)[None, :].double()
    shape = (channels, height, width)
    images = []
    for _ in range(batch):
        kind = choose(generator, ("steps", "noise", "constant", "board", "ramp", "text", "impulse", "negative"))
        random = torch.rand(shape, dtype=torch.float64, generator=generator)
        images.append(
            {
                "steps": (rows > height / 3).double() * 0.6 + (columns > width / 2).double() * 0.3 + 0.1 * random,
                "noise": random,
                "constant": torch.full(shape, 0.5, dtype=torch.float64),
                "board": ((rows + columns) % 2).expand(shape),
                "ramp": ((rows + 2 * columns) / (height + 2 * width)).expand(shape),
                "text": (random < 0.2).double(),
                "impulse": torch.nn.functional.one_hot(torch.tensor(height * width // 2), height * width)
                .reshape(height, width)
                .double()
                .expand(shape)
                * 1e6,
                "negative": -random,
            }[kind]
        )
    return torch.stack(images)


def pictures(generator: torch.Generator, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Images `(B, C, H, W)` in the dtype, what they are without their offsets, in float64, and the offsets."""
    size = choose(generator, ((1, 1), (1, 7), (6, 1), (2, 2), (5, 6), (8, 8), (12, 9)))
    channels = choose(generator, (1, 3))
    images = shade(generator, BATCH, channels, *size)
    form = choose(generator, ("scaled", "scaled", "bytes", "ulps"))
    offset = torch.zeros(BATCH, 1, 1, 1, dtype=torch.float64)
    if form == "scaled":
        images = (images * 10 ** uniform(generator, -12, 12)).clamp(-LARGEST, LARGEST)
    elif form == "bytes":
        images = (255 * images).round()
    else:  # a few units in the last place of an offset
        power = choose(generator, (0, 10, 24, 40))
        unit = torch.finfo(dtype).eps * 2.0**power
        images = unit * (choose(generator, (1, 2, 5)) * images.clamp(-1, 1)).round()
        offset = offset + 1.4 * 2.0**power
    whole = (images + offset).to(dtype)
    offset = offset.to(dtype).double()
    return whole, whole.double() - offset, offset


def weight_for(generator: torch.Generator, images: Tensor) -> float:
    """From 1e-6 to 1e6, half of the time in units of the contrast."""
    contrast = float((images.amax() - images.amin()).clamp(min=1e-12)) if uniform(generator, 0, 1) < 0.7 else 1.0
    return max(1e-30, contrast * 10 ** uniform(generator, *((-2, 1) if uniform(generator, 0, 1) < 0.6 else (-6, 6))))


def flat(images: Tensor) -> Tensor:
    return images.mean(dim=(2, 3), keepdim=True).expand_as(images)


def denoising(generator: torch.Generator, dtype: torch.dtype) -> Instance:
    noisy, exact, offset = pictures(generator, dtype)
    form = {"isotropic": uniform(generator, 0, 1) < 0.4, "halved": uniform(generator, 0, 1) < 0.3}
    weight = float(torch.tensor(weight_for(generator, exact), dtype=dtype))
    problem = TVDenoising(noisy, weight, **form)
    return Instance(problem, noisy, TVDenoising(exact, weight, **form), offset, (exact, flat(exact)))


def inpainting(generator: torch.Generator, dtype: torch.dtype) -> Instance:
    noisy, exact, offset = pictures(generator, dtype)
    form = {"isotropic": uniform(generator, 0, 1) < 0.4, "halved": uniform(generator, 0, 1) < 0.3}
    weight = float(torch.tensor(weight_for(generator, exact), dtype=dtype))
    share = choose(generator, (0.0, 0.5, 0.8, 1.0))
    mask = torch.rand(noisy.shape[2:], generator=generator) < share
    mask.view(-1)[int(torch.randint(mask.numel(), (), generator=generator))] = True
    kept = (mask * exact).sum(dim=(2, 3), keepdim=True) / mask.sum()
    guesses = (kept.expand_as(exact), torch.where(mask, exact, kept))
    return Instance(
        TVInpainting(noisy, mask, weight, **form), noisy, TVInpainting(exact, mask, weight, **form), offset, guesses
    )


def deblurring(generator: torch.Generator, dtype: torch.dtype) -> Instance:
    unit = 10 ** uniform(generator, -12, 12)
    noisy = (unit * shade(generator, BATCH, choose(generator, (1, 3)), 9, 8).clamp(-1, 2)).to(dtype)
    weight = float(torch.tensor(unit * 10 ** uniform(generator, -6, 3), dtype=dtype))
    form: dict[str, Any] = {
        "box": (0.0, unit),
        "isotropic": uniform(generator, 0, 1) < 0.4,
        "halved": uniform(generator, 0, 1) < 0.3,
        "border": choose(generator, ("circular", "replicate")),
    }
    kernel = gaussian_kernel(1.0) if uniform(generator, 0, 1) < 0.5 else torch.eye(5) / 5
    problem = TVDeblurring(noisy, kernel, weight, **form)
    return without_offset(problem, problem.start())


def tomography(generator: torch.Generator, dtype: torch.dtype) -> Instance:
    unit = 10 ** uniform(generator, -12, 12)
    image = unit * shade(generator, BATCH, 1, 8, 8).clamp(0, 1)
    beams = beams_of(8)
    seen = beams(image)
    noisy = (seen + 0.05 * unit * torch.randn(seen.shape, dtype=torch.float64, generator=generator)).to(dtype)
    weight = float(torch.tensor(unit * 10 ** uniform(generator, -6, 3), dtype=dtype))
    form: dict[str, Any] = {"isotropic": uniform(generator, 0, 1) < 0.4, "box": (0.0, unit)}
    problem = TVTomography(noisy, (8, 8), weight, beams=beams, **form)
    return without_offset(problem, problem.start())


@functools.cache
def beams_of(size: int) -> Any:
    from lmd.operators import ParallelBeam

    return ParallelBeam(size, size, angles=6)


def lasso(generator: torch.Generator, dtype: torch.dtype) -> Instance:
    m, d = choose(generator, ((1, 1), (5, 9), (20, 12), (100, 200)))
    scale = 10 ** uniform(generator, -3, 3)
    A = (scale * torch.randn(m, d, dtype=torch.float64, generator=generator)).to(dtype)
    b = (10 ** uniform(generator, -12, 12) * torch.randn(BATCH, m, dtype=torch.float64, generator=generator)).to(dtype)
    most = (b @ A).abs().amax(dim=1)
    weight = (most * 10 ** uniform(generator, -4, 0.1)).clamp(min=1e-30)
    problem = Lasso(A, b, weight)
    return without_offset(problem, problem.start(), (torch.zeros(BATCH, d, dtype=torch.float64),))


def least_squares(generator: torch.Generator, dtype: torch.dtype) -> Instance:
    d = choose(generator, (1, 2, 7))
    W = torch.randn(d + 2, d, dtype=torch.float64, generator=generator) * 10 ** uniform(generator, -3, 3)
    unit = 10 ** uniform(generator, -12, 12)
    b = torch.randn(BATCH, d + 2, dtype=torch.float64, generator=generator) * unit
    x0 = torch.randn(BATCH, d, dtype=torch.float64, generator=generator) * unit * 10 ** uniform(generator, -3, 3)
    problem = LeastSquares(W.to(dtype), b.to(dtype))
    best = torch.linalg.lstsq(problem.W.double(), problem.b.double().T).solution.T
    return without_offset(problem, x0.to(dtype), (best,))


def simplex(generator: torch.Generator, dtype: torch.dtype) -> Instance:
    kind, d = choose(generator, (KLDivergence, SquaredDistance)), choose(generator, (2, 3, 10))
    y, x0 = (uniform_simplex(BATCH, d, generator, dtype) for _ in range(2))
    if uniform(generator, 0, 1) < 0.3:
        y = torch.nn.functional.one_hot(torch.randint(d, (BATCH,), generator=generator), d).to(dtype)
        y = y if kind is SquaredDistance else 0.9 * y + 0.1 / d
    problem, guess = kind(y), y.double() / y.double().sum(dim=1, keepdim=True)
    return DomainInstance(problem, x0, problem.double(), torch.zeros((), dtype=torch.float64), (guess,))


def features(generator: torch.Generator, dtype: torch.dtype, classes: int) -> tuple[Tensor, Tensor, float]:
    """Rows, labels, and the unit of the rows."""
    m, d = choose(generator, ((4, 1), (20, 3), (50, 8)))
    labels = torch.randint(classes, (m,), generator=generator)
    labels[:classes] = torch.arange(classes)
    rows = torch.randn(m, d, dtype=torch.float64, generator=generator) + labels[:, None] * uniform(generator, 0, 3)
    unit = 10 ** uniform(generator, *((-12, 12) if uniform(generator, 0, 1) < 0.5 else (-2, 2)))
    return (rows * unit).to(dtype), labels, unit


def svm(generator: torch.Generator, dtype: torch.dtype) -> Instance:
    rows, labels, unit = features(generator, dtype, 2)
    problem = SVM(rows, 2 * labels - 1, C=10 ** uniform(generator, -3, 3) / unit**2, starts=BATCH)
    x0 = torch.randn(BATCH, *problem.point_shape, dtype=torch.float64, generator=generator) / unit
    best = lmd.guarantees.optimum(problem.select(0)).x.expand(BATCH, -1)
    return without_offset(problem, (x0 * 10 ** uniform(generator, -2, 2)).to(dtype), (best,))


def classifier(generator: torch.Generator, dtype: torch.dtype) -> Instance:
    rows, labels, unit = features(generator, dtype, 3)
    problem = LinearClassifier(rows, labels, classes=3, ridge=10 ** uniform(generator, -3, 1) * unit**2, starts=BATCH)
    x0 = torch.randn(BATCH, *problem.point_shape, dtype=torch.float64, generator=generator) / unit
    best = lmd.guarantees.optimum(problem.select(0)).x.expand(BATCH, -1)
    return without_offset(problem, x0.to(dtype), (best,))


def without_offset(problem: Problem, x0: Tensor, guesses: tuple[Tensor, ...] = ()) -> Instance:
    exact = problem.double()
    assert exact is not None
    return Instance(problem, x0, exact, torch.zeros((), dtype=torch.float64), guesses)


@functools.cache
def by_name(name: str, bare: bool, dtype: torch.dtype) -> Solver[Any]:
    return lmd.zoo.load(name, bare=bare).to(dtype)


def named(names: tuple[str, ...]) -> Callable[[torch.Generator, Instance], dict[str, Solver[Any]]]:
    """One of the zoo, as people get it, bare, and guarded from the start."""

    def make(generator: torch.Generator, instance: Instance) -> dict[str, Solver[Any]]:
        name, dtype = choose(generator, names), instance.x0.dtype
        if "-pair-" in name and instance.x0.shape[1] != 3:
            name = names[0]
        bare = by_name(name, True, dtype)
        found = {f"{name} by name": by_name(name, False, dtype), f"Safeguard({name})": Safeguard(bare)}
        return {**found, name: bare} if bare.ends_proven else found

    return make


def tv_solvers(learned: tuple[str, ...], dual: bool) -> Callable[[torch.Generator, Instance], dict[str, Solver[Any]]]:
    def make(generator: torch.Generator, instance: Instance) -> dict[str, Solver[Any]]:
        found: dict[str, Solver[Any]] = {
            "PDHG": choose(generator, (PDHG(), PDHG(settle=8), PDHG(accelerated=False))),
            "Safeguard(gradient)": Safeguard(GradientDescent(10 ** uniform(generator, -3, 2))),
        }
        if dual:
            found["FGP"] = choose(generator, (FGP(), FGP(restart=True)))
        return {**found, **named(learned)(generator, instance)}

    return make


def smooth_solvers(generator: torch.Generator, instance: Instance) -> dict[str, Solver[Any]]:
    L = float(instance.problem.smoothness.max())
    step = uniform(generator, 0.05, 1.1) / L
    d = instance.x0[0].numel()
    return {
        "LBFGS": LBFGS(),
        "Nesterov": Nesterov(step),
        "MirrorDescent": MirrorDescent(Euclidean(), step),
        "LazyMirrorDescent": LazyMirrorDescent(Quadratic(d).to(instance.x0.dtype), step),
        "DescentSafeguard": DescentSafeguard(GradientDescent(10 * step)),
        "Safeguard": Safeguard(GradientDescent(10 * step)),
    }


def least_squares_solvers(generator: torch.Generator, instance: Instance) -> dict[str, Solver[Any]]:
    found = smooth_solvers(generator, instance)
    if instance.x0.shape[1] == 2:
        found |= named(("least-squares-quadratic-10", "least-squares-one-layer-10"))(generator, instance)
    return found


def simplex_solvers(generator: torch.Generator, instance: Instance) -> dict[str, Solver[Any]]:
    step = 10 ** uniform(generator, -2, 0.3)
    return {
        "GradientDescent": GradientDescent(step),
        "Entropic": MirrorDescent(Entropic(), step),
        "EuclideanSimplex": MirrorDescent(EuclideanSimplex(), step),
        "Lazy": LazyMirrorDescent(Entropic(), step),
    }


def svm_solvers(generator: torch.Generator, instance: Instance) -> dict[str, Solver[Any]]:
    return {
        "InteriorPoint": InteriorPoint(),
        "Safeguard": Safeguard(GradientDescent(10 ** uniform(generator, -4, 0))),
        "GradientDescent": GradientDescent(1e-3),
    }


def composite_reference(problem: Problem) -> Solver[Any]:
    return PDHG(settle=16)


def denoising_reference(problem: Problem) -> Solver[Any]:
    return FGP(restart=True)


DENOISERS = (
    "denoise-10",
    "denoise-5",
    "denoise-20",
    "denoise-7-fast",
    "denoise-20-fast",
    "denoise-isotropic-10",
    "denoise-pair-10",
)
INPAINTERS = ("inpaint-10", "inpaint-20", "inpaint-7-fast", "inpaint-15-fast", "inpaint-pair-10")

KINDS = {
    "denoising": Kind(denoising, tv_solvers(DENOISERS, dual=True), denoising_reference),
    "inpainting": Kind(inpainting, tv_solvers(INPAINTERS, dual=False), composite_reference),
    "deblurring": Kind(deblurring, tv_solvers(("deblur-20",), dual=False), composite_reference),
    "tomography": Kind(tomography, tv_solvers(("tomography-20",), dual=False), composite_reference),
    "lasso": Kind(lasso, tv_solvers(("lasso-10",), dual=False), composite_reference),
    "least-squares": Kind(least_squares, least_squares_solvers, lambda problem: LBFGS()),
    "simplex": Kind(simplex, simplex_solvers, lambda problem: GradientDescent(0.1)),
    "svm": Kind(svm, svm_solvers, lambda problem: InteriorPoint()),
    "classifier": Kind(classifier, smooth_solvers, lambda problem: LBFGS()),
}
SHARES = {"denoising": 600, "inpainting": 500, "deblurring": 20, "tomography": 40}
SHARES |= {"lasso": 150, "least-squares": 100, "simplex": 140, "svm": 140, "classifier": 60}
"""How many instances of 2000 or so a kind gets: the fewer, the more one costs."""


@functools.cache
def every_kind() -> dict[str, tuple[Kind, int]]:
    """Kinds by name, and how often each is tried: those of this file and of its neighbours truth_*.py."""
    sys.modules.setdefault("truth", sys.modules[__name__])
    folder = Path(__file__).parent
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    found = [sys.modules[__name__], *(importlib.import_module(path.stem) for path in sorted(folder.glob("truth_*.py")))]
    return {name: (kind, getattr(m, "SHARES", {}).get(name, 1)) for m in found for name, kind in m.KINDS.items()}


def try_solvers(kind: Kind, instance: Instance, generator: torch.Generator) -> dict[str, Attempt]:
    """Each solver's run."""
    attempts: dict[str, Attempt] = {}
    iterations = choose(generator, (1, 4, 20, 60))
    for name, solver in kind.solvers(generator, instance).items():
        if not isinstance(solver, Solver):
            attempts[name] = solver(instance)
            continue
        tolerance = None
        if isinstance(solver, (PDHG, FGP, InteriorPoint)) and uniform(generator, 0, 1) < 0.3:
            tolerance = 10 ** uniform(generator, -9, -1)
        count = iterations if tolerance is None else 200
        result = lmd.run(solver, instance.problem, instance.x0, count, tolerance=tolerance)
        beside = None
        if isinstance(solver, Safeguard) and 2 * begins(solver) <= count:
            fallback = solver.fallback or default_fallback(instance.problem)
            beside = lmd.run(fallback, instance.problem, instance.x0, count)
        attempts[name] = Attempt(result, tolerance, beside, "Safeguard" in name or "by name" in name)
    if kind.default and TRY_DEFAULTS:
        attempts["lmd.solve"] = solve_by_default(instance)
    return attempts


def begins(solver: Safeguard) -> int:
    """The iteration after which the fall-back begins, or a later one: it has caught up at twice that."""
    return (solver.horizon or 0) if solver.delay is None else solver.delay


def lowest_value(kind: Kind, instance: Instance, points: list[Tensor]) -> Tensor:
    """The lowest value that is known for each instance `(B,)`."""
    found = [*(instance.exact.value(guess) for guess in instance.guesses), *(instance.value(x) for x in points)]
    if kind.reference is not None:
        start = instance.x0.double() - instance.offset
        domain = instance.exact.domain
        start = start if domain is None else domain.nearest(start)
        reference = lmd.run(kind.reference(instance.exact), instance.exact, start, REFERENCE)
        found.append(reference.history.values.nan_to_num(nan=math.inf).amin(dim=0))
    return torch.stack(found).nan_to_num(nan=math.inf).amin(dim=0)


def judge(instance: Instance, lowest: Tensor, attempt: Attempt) -> dict[str, Tensor]:
    """What is wrong with an answer, for each instance `(B,)`."""
    result, tolerance = attempt.result, attempt.tolerance
    certificate, eps = result.certificate, torch.finfo(instance.x0.dtype).eps
    assert certificate is not None
    truth = instance.told(result.x)
    size = truth.abs() + lowest.abs()
    slack = 1e-13 * size  # of this script's own float64
    false = certificate.bound + slack < truth - lowest
    false |= certificate.lower_bound > lowest + slack
    reached = torch.tensor([status is Status.TOLERANCE_REACHED for status in result.status])
    if tolerance is not None:
        false |= reached & (truth - lowest > tolerance * lowest.abs() * (1 + 1e-9) + slack)
    numbers = result.x[0].numel()
    # A value is that of a point off by rounding: its error is at most of this size, whatever cancels.
    unit = eps * (8 + numbers) * (instance.x0.abs().amax() + result.x.abs().amax()).double()
    moved = (instance.told(result.x.double() * (1 + 4 * eps)) - truth).abs()
    wrong = (result.values.double() - truth).abs() > 64 * eps * numbers * truth.abs() + 64 * moved + 16 * unit**2
    worse = torch.zeros_like(false)
    if attempt.beside is not None:
        worse = result.values > attempt.beside.values
    if attempt.guarded:
        worse = worse | (result.values > result.history.values[0])
    failed = torch.tensor([status.failed for status in result.status])
    broken = (
        ~torch.isfinite(result.x.flatten(1)).all(dim=1) | ~torch.isfinite(result.values) | certificate.bound.isnan()
    )
    ended = torch.tensor([status is Status.STALLED for status in result.status])
    spent = torch.tensor([status is Status.FINISHED for status in result.status]) & (result.iterations >= SPENT)
    ended |= spent & (relative_gap(certificate.value, certificate.bound) <= TOLERANCE)
    return {
        "false": false,
        "value": wrong,
        "worse": worse,
        "not finite": broken | (failed & attempt.guarded),
        "unproven": ~(reached | ended) & attempt.default,
    }


def work(kind_name: str, seed: int) -> tuple[str, float, dict[str, collections.Counter[str]], list[str]]:
    """One batch of one kind: seconds of CPU, what was counted for each solver, and a line for each fault."""
    begun = time.process_time()
    torch.set_num_threads(1)
    kind, _ = every_kind()[kind_name]
    generator = torch.Generator().manual_seed(seed)
    dtype = choose(generator, (torch.float32, torch.float64))
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    lines: list[str] = []
    try:
        instance = kind.draw(generator, dtype)
        with torch.no_grad():
            attempts = try_solvers(kind, instance, generator)
            lowest = lowest_value(kind, instance, [attempt.result.x for attempt in attempts.values()])
            for name, attempt in attempts.items():
                counts[name]["instances"] += len(attempt.result.x)
                for what, where in judge(instance, lowest, attempt).items():
                    counts[name][what] += int(where.sum())
                    if bool(where.any()):
                        first = int(where.nonzero()[0])
                        lines.append(f"{kind_name}, seed {seed}, {dtype}, {name}: {what}, instance {first}")
    except Exception:
        lines.append(f"{kind_name}, seed {seed}, {dtype}: {traceback.format_exc(limit=-3)}")
        counts["error"]["not finite"] += 1
    return kind_name, time.process_time() - begun, dict(counts), lines


class Jobs:
    """(kind, seed) without end: the kind that has had the least of its share is next."""

    def __init__(self, only: str, seed: int) -> None:
        self.shares = {name: share for name, (_, share) in every_kind().items() if only in name}
        self.seeds = {name: itertools.count(seed * 1_000_003) for name in self.shares}
        self.had = dict.fromkeys(self.shares, 0.0)
        self.batch = dict.fromkeys(self.shares, 1)

    def take(self) -> tuple[str, int]:
        name = min(self.had, key=lambda each: self.had[each] / self.shares[each])
        self.had[name] += self.batch[name]
        return name, next(self.seeds[name])

    def done(self, name: str, count: int) -> None:
        """A batch of a kind had so many instances: at least one, as errors have none."""
        self.had[name] += max(count, 1) - self.batch[name]
        self.batch[name] = max(count, 1)


def measure(instances: int, seed: int = 0, only: str = "", workers: int = 1, show: bool = True) -> Any:
    """Counts by kind and solver, a line for each fault, and seconds of CPU by kind."""
    totals: dict[tuple[str, str], collections.Counter[str]] = collections.defaultdict(collections.Counter)
    lines: list[str] = []
    seconds: collections.Counter[str] = collections.Counter()
    queue, done = Jobs(only, seed), 0

    def take(answer: Any) -> None:
        nonlocal done
        kind, spent, counts, found = answer
        lines.extend(found)
        seconds[kind] += spent
        for solver, counted in counts.items():
            totals[kind, solver].update(counted)
        count = sum(counted["instances"] for counted in counts.values())
        done += count
        queue.done(kind, count)

    if workers == 1:
        while done < instances:
            take(work(*queue.take()))
        return totals, lines, seconds
    begun = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=context) as pool:
        running = {pool.submit(work, *queue.take()) for _ in range(2 * workers)}
        while running:
            finished, running = concurrent.futures.wait(running, return_when="FIRST_COMPLETED")
            for future in finished:
                take(future.result())
                if done < instances:
                    running.add(pool.submit(work, *queue.take()))
            if show:
                print(f"\r{done} instances, {time.perf_counter() - begun:.0f} s", end="", file=sys.stderr, flush=True)
    if show:
        print(file=sys.stderr)
    return totals, lines, seconds


def print_kinds(totals: Any, seconds: Mapping[str, float]) -> None:
    """A line for each kind: instances, what was counted, and what one costs."""
    print(f"{'':<52}{'instances':>10}" + "".join(f"{name:>12}" for name in (*COUNTS, "CPU ms each")))
    for kind in sorted(seconds):
        whole: collections.Counter[str] = collections.Counter()
        for (name, _), counted in totals.items():
            whole.update(counted if name == kind else {})
        row = "".join(f"{whole[name]:>12}" for name in COUNTS)
        print(f"{kind:<52}{whole['instances']:>10}{row}{1000 * seconds[kind] / max(whole['instances'], 1):>12.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="part of a kind's name")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    totals, lines, seconds = measure(arguments.instances, arguments.seed, arguments.only, arguments.workers)
    print(f"{'':<52}{'instances':>10}" + "".join(f"{name:>12}" for name in COUNTS))
    whole: collections.Counter[str] = collections.Counter()
    for (kind, solver), counted in sorted(totals.items()):
        whole.update(counted)
        row = "".join(f"{counted[name]:>12}" for name in COUNTS)
        print(f"{kind + ', ' + solver:<52}{counted['instances']:>10}{row}")
    print(f"{'all':<52}{whole['instances']:>10}" + "".join(f"{whole[name]:>12}" for name in COUNTS))
    print()
    print_kinds(totals, seconds)
    for line in lines[:40]:
        print(line)
    sys.exit(1 if any(whole[name] for name in COUNTS) else 0)


if __name__ == "__main__":
    main()
