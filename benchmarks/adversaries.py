"""An adversary for each theorem of docs/guarantees.md: a search for an instance on which it is false.

    python benchmarks/adversaries.py [--tries 10000] [--seed 0] [--only NAME]

Each adversary draws problems, mirrors, steps, starts and precisions at random, evaluates the bound with the code of the
package and the truth from a closed form, and climbs from the worst instances towards a larger ratio truth / bound. The
search is run with the true constants, where no violation may be found, and then once for each constant that the theorem
depends on, with that constant halved, where one must be found: an adversary that cannot find it is too weak to be
trusted. Exit code 1 where either fails.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import Any, NamedTuple

import torch
from torch import Tensor

import lmd
from lmd.core.batching import to_double
from lmd.guarantees import DescentSafeguard, Safeguard
from lmd.guarantees.certify import (
    Record,
    accelerated_certificate,
    divergence_bound,
    regret_certificate,
    relative_certificate,
    subgradient_certificate,
)
from lmd.guarantees.minima import balance, enclose, lower_bounds
from lmd.guarantees.promises import Monitor, Promise, least_share
from lmd.mirrors import Entropic, EuclideanBox, EuclideanSimplex, Mirror, Quadratic
from lmd.problems import Composite, LeastSquares, Problem, TVDenoising, TVInpainting
from lmd.problems.duality import proven_gap
from lmd.problems.simplex import KLDivergence, SquaredDistance
from lmd.solvers import (
    BacktrackedMirrorDescent,
    GradientDescent,
    LazyMirrorDescent,
    MirrorDescent,
    Solver,
    State,
)
from lmd.terms import L1, Box, Simplex, Squares

F64, ROOM = torch.float64, "no room"
BATCH, GENERATIONS, PARENTS = 64, 6, 8
"""Instances that are tried together; batches that climb from one restart; instances that the next batch comes from."""


# --- The search ------------------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """What is true and what the theorem says, of each instance `(B,)`."""

    truth: Tensor
    bound: Tensor
    rounding: Tensor
    """How far `truth` itself can be off."""

    @property
    def ratio(self) -> Tensor:
        """truth / bound; 0 where nothing is claimed, or where the truth is rounding."""
        says = torch.isfinite(self.bound) & (self.truth > self.rounding)
        return torch.where(says, self.truth / self.bound.clamp(min=1e-300), 0.0)

    @property
    def violated(self) -> Tensor:
        return torch.isfinite(self.bound) & (self.truth - self.bound > self.rounding)


Case = Callable[[Tensor], Outcome]
"""From genes `(B, G)`, standard normal to begin with, to what is true of the instances that they describe."""


@dataclass(frozen=True)
class Adversary:
    """A theorem, what it depends on, and how to draw cases of it."""

    theorem: str
    draw: Callable[[torch.Generator, str | None], Case]
    """From a generator, and the constant that is halved, to a case."""

    constants: tuple[str, ...]
    genes: int = 40
    generations: int = GENERATIONS


@dataclass
class Finding:
    """What a search found."""

    tries: int = 0
    worst: float = 0.0
    violations: int = 0


def search(adversary: Adversary, tries: int, seed: int = 0, halved: str | None = None, enough: int = 0) -> Finding:
    """Try so many instances; end early after `enough` violations, where that is not 0."""
    found = Finding()
    generator = torch.Generator().manual_seed(seed)
    while found.tries < tries:
        case = adversary.draw(generator, halved)
        genes = torch.randn(BATCH, adversary.genes, dtype=F64, generator=generator)
        for generation in range(adversary.generations):
            outcome = case(genes)
            found.tries += len(genes)
            found.worst = max(found.worst, float(outcome.ratio.max()))
            found.violations += int(outcome.violated.sum())
            if found.tries >= tries or (enough and found.violations >= enough):
                return found
            best = genes[outcome.ratio.topk(PARENTS).indices]
            best = best.repeat(BATCH // PARENTS, 1)
            change = torch.randn(best.shape, dtype=F64, generator=generator)
            few = torch.rand(best.shape, dtype=F64, generator=generator) < 0.3
            genes = best + 0.7**generation * change * few
    return found


def uniform(generator: torch.Generator, low: float, high: float) -> float:
    return low + (high - low) * float(torch.rand((), dtype=F64, generator=generator))


def choose(generator: torch.Generator, *options: Any) -> Any:
    return options[int(torch.randint(len(options), (), generator=generator))]


class Genes:
    """Takes numbers from genes `(B, G)`, one column after the other."""

    def __init__(self, genes: Tensor) -> None:
        self.genes, self.used = genes, 0

    def take(self, count: int) -> Tensor:
        """Standard normal numbers `(B, count)`."""
        self.used += count
        return self.genes[:, self.used - count : self.used]

    def powers(self, count: int, decades: float) -> Tensor:
        """Positive numbers `(B, count)` within about so many powers of ten of 1."""
        return 10 ** (decades * torch.tanh(self.take(count)))


# --- Problems and mirrors with a number of everything per instance ---------------------------------------------------


class Bowls(Problem):
    r"""f(x) = \sum_i c_i/2 (x_i - a_i)^2 + s_i h(x_i - b_i), h Huber's function of width w_i, or |.| if w_i = 0."""

    batched = ("c", "a", "s", "b", "w")
    lies: str | None = None

    def __init__(self, c: Tensor, a: Tensor, s: Tensor, b: Tensor, w: Tensor) -> None:
        self.c, self.a, self.s, self.b, self.w = c, a, s, b, w

    @property
    def width(self) -> Tensor:
        """w, and where that is 0 a number to divide by."""
        return self.w.clamp(min=torch.finfo(self.w.dtype).tiny)

    def double(self) -> Bowls:
        return to_double(self)

    def value(self, x: Tensor) -> Tensor:
        u, w = (x - self.b).abs(), self.w
        huber = torch.where(u > w, u - w / 2, u.square() / (2 * self.width))
        return (self.c / 2 * (x - self.a).square() + self.s * huber).sum(dim=1)

    def subgradient(self, x: Tensor) -> Tensor:
        u = x - self.b
        slope = torch.where(u.abs() >= self.w, u.sign(), u / self.width)
        return self.c * (x - self.a) + self.s * slope

    def minimiser(self) -> Tensor:
        """u = x - b solves c (u - q) + s h'(u) = 0 with q = a - b; nearest to 0 where there is no c."""
        q, flat = self.a - self.b, self.c == 0
        c = torch.where(flat, 1, self.c)
        inner = torch.where(self.w > 0, c * q / (c + self.s / self.width), 0)
        outer = q.sign() * (q.abs() - self.s / c).clamp(min=0)
        return self.b + torch.where(flat, 0, torch.where(outer.abs() > self.w, outer, inner))

    @property
    def smoothness(self) -> Tensor | None:
        if bool(((self.s > 0) & (self.w == 0)).any()):
            return None
        largest = (self.c + self.s / self.width).amax(dim=1)
        return largest / 2 if self.lies == "L" else largest

    @property
    def strong_convexity(self) -> Tensor | None:
        least = self.c.amin(dim=1)
        return 2 * least if self.lies == "1/mu" else least


class Shape(NamedTuple):
    """What the instances of a batch have in common."""

    n: int
    kind: str
    """Strongly convex ("curved", "kinked"), or not ("huber", "sharp", which has kinks)."""

    dtype: torch.dtype = F64
    decades: float = 1.0
    """Curvatures are within so many powers of ten of each other."""

    offset: float = 0.0
    """What minimisers are near to."""


def bowls(genes: Genes, shape: Shape, halved: str | None) -> Bowls:
    n, kind, dtype = shape.n, shape.kind, shape.dtype
    scale, zeros = genes.powers(1, 2), torch.zeros(len(genes.genes), n, dtype=F64)
    c = scale * genes.powers(n, shape.decades) if kind in ("curved", "kinked") else zeros
    a, b = shape.offset + genes.take(n), shape.offset + genes.take(n)
    s = zeros if kind == "curved" else scale * genes.powers(n, 1)
    w = genes.powers(n, 1) if kind == "huber" else zeros
    problem = Bowls(*(each.to(dtype) for each in (c, a, s, b, w)))
    problem.lies = halved
    return problem


class LinearOnSimplex(Problem):
    """f(x) = <g, x> on the simplex: the minimum is the least entry of g."""

    batched = ("g",)
    domain = Simplex()

    def __init__(self, g: Tensor) -> None:
        self.g = g

    def value(self, x: Tensor) -> Tensor:
        return (self.g * x).sum(dim=1)

    def subgradient(self, x: Tensor) -> Tensor:
        return self.g.expand_as(x)

    def minimiser(self) -> Tensor:
        return torch.nn.functional.one_hot(self.g.argmin(dim=1), self.g.shape[1]).to(self.g)


class Boxed(Bowls):
    """Bowls in a box: entry by entry, the minimiser is the clipped one."""

    domain = Box(-1.0, 1.0)

    def minimiser(self) -> Tensor:
        return super().minimiser().clamp(-1, 1)


class Stretched(Mirror):
    """Psi(x) = 1/2 sum_i d_i x_i^2 with d `(B, n)` of its own for each instance, d >= sigma."""

    lies: str | None = None

    def __init__(self, d: Tensor, sigma: float) -> None:
        super().__init__()
        self.register_buffer("d", d)
        self.sigma = sigma

    def potential(self, x: Tensor) -> Tensor:
        return (self.d * x.square()).sum(dim=1) / 2

    def to_dual(self, x: Tensor) -> Tensor:
        return self.d * x

    def to_primal(self, y: Tensor, tolerance: float | None = None) -> Tensor:
        return y / self.d

    def divergence(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.d * (x - y).square()).sum(dim=1) / 2

    @property
    def strong_convexity(self) -> Tensor:
        return torch.tensor(2 * self.sigma if self.lies == "1/sigma" else self.sigma, dtype=F64)

    @property
    def smoothness(self) -> Tensor:
        largest = self.d.amax(dim=1)
        return largest / 2 if self.lies == "mirror's L" else largest


class Sloppy(Stretched):
    """An inverse that is off by a vector `(B, n)` of each instance."""

    is_exact = False

    def __init__(self, d: Tensor, sigma: float, offset: Tensor) -> None:
        super().__init__(d, sigma)
        self.register_buffer("offset", offset)

    def to_primal(self, y: Tensor, tolerance: float | None = None) -> Tensor:
        return super().to_primal(y) + self.offset


def stretched(genes: Genes, n: int, sigma: float, dtype: torch.dtype, halved: str | None) -> Stretched:
    d = sigma * 10 ** genes.take(n).clamp(min=0)
    mirror = Stretched(torch.cat([torch.full_like(d[:, :1], sigma), d[:, 1:]], dim=1).to(dtype), sigma)
    mirror.lies = halved
    return mirror


def on_simplex(numbers: Tensor) -> Tensor:
    """Points of the simplex `(B, n)` from normal numbers, some of them near its border."""
    return torch.softmax(3 * numbers, dim=1)


def compare(problem: Problem, record: Record, lower: Tensor, of: str = "best") -> Outcome:
    """What a lower bound says of the best value of the run, or of their mean: it is true if it is below the minimum.

    Values above that of the start are left out: of a run that diverges anything could be said.
    """
    minimum = (problem.double() or problem).minimum().double()
    values = torch.fmin(record.values, record.values[0])
    value = values.amin(dim=0) if of == "best" else values[:-1].mean(dim=0)
    value = torch.maximum(value, minimum + record.epsilon * values[0].abs())  # which rounding may have put below it
    return Outcome(value - minimum, value - lower, 1e-13 * (minimum.abs() + record.values[0].abs()))


def vars_of(record: Record) -> dict[str, Any]:
    return {each.name: getattr(record, each.name) for each in fields(record)}


def lying(record: Record, name: str, factor: float) -> Record:
    """The record with other numbers noticed."""
    if name not in record.diagnostics:
        return record
    return replace(record, diagnostics={**record.diagnostics, name: factor * record.diagnostics[name]})


# --- Theorems 1 to 4: mirror descent ---------------------------------------------------------------------------------


class Roomless(Record):
    """A record without room for rounding."""

    units = 0.0


class Setting(NamedTuple):
    """A problem, a mirror on its domain, a start, and B(x*, x_0) in float64."""

    problem: Problem
    mirror: Mirror
    start: Tensor
    divergence: Tensor


def measured(problem: Problem, mirror: Mirror, start: Tensor) -> Setting:
    exact = to_double(mirror) if isinstance(mirror, Stretched) else mirror
    return Setting(problem, mirror, start, exact.divergence((problem.double() or problem).minimiser(), start.double()))


def in_space(genes: Genes, shape: Shape, sigma: float, near: float, halved: str | None) -> Setting:
    problem = bowls(genes, shape, halved)
    mirror = stretched(genes, shape.n, sigma, shape.dtype, halved)
    start = problem.minimiser() + near * genes.powers(1, 2) * genes.take(shape.n)
    return measured(problem, mirror, start.to(shape.dtype))


def in_box(genes: Genes, shape: Shape, halved: str | None) -> Setting:
    problem = bowls(genes, shape, halved)
    problem.__class__ = Boxed
    return measured(problem, EuclideanBox(-1.0, 1.0), genes.take(shape.n).clamp(-1, 1).to(shape.dtype))


def in_simplex(genes: Genes, n: int, kind: str, mirror: Mirror, dtype: torch.dtype) -> Setting:
    scale, y, start = genes.powers(1, 2), genes.take(n), on_simplex(genes.take(n)).to(dtype)
    made = {"linear": LinearOnSimplex, "kl": KLDivergence, "squares": SquaredDistance}[kind]
    return measured(made((scale * y if kind == "linear" else on_simplex(y)).to(dtype)), mirror, start)


def any_setting(generator: torch.Generator, halved: str | None, kinds: tuple[str, ...]) -> Callable[[Genes], Setting]:
    n, sigma, kind = choose(generator, 1, 2, 3), 10 ** uniform(generator, -1, 1), choose(generator, *kinds)
    dtype, decades = choose(generator, torch.float32, F64), choose(generator, 0.5, 1.0, 3.0)
    hard = halved == ROOM or (halved is None and choose(generator, True, False))  # for rounding
    near, offset = (10 ** uniform(generator, -6, 0), 10 ** uniform(generator, 0, 4)) if hard else (1.0, 0.0)
    where = (
        "space" if halved in ("1/sigma", "mirror's L", "L", "1/mu") else choose(generator, "space", "box", "simplex")
    )
    if where == "space":
        return lambda genes: in_space(genes, Shape(n, kind, dtype, decades, offset), sigma, near, halved)
    if where == "box":
        return lambda genes: in_box(genes, Shape(n, kind, dtype, decades), halved)
    objective, mirror = choose(generator, "linear", "kl", "squares"), choose(generator, Entropic(), EuclideanSimplex())
    return lambda genes: in_simplex(genes, n + 1, objective, mirror, dtype)


def given_divergence(generator: torch.Generator, halved: str | None) -> Callable[[Tensor], Tensor | None]:
    """The divergence itself, half of it, or None, where the package has to bound it."""
    if halved == "B(x*, x_0)":
        return lambda divergence: divergence / 2
    known = halved is not None or choose(generator, True, False)
    return lambda divergence: divergence if known else None


def regret(generator: torch.Generator, halved: str | None, solver: type[MirrorDescent] = MirrorDescent) -> Case:
    setting = any_setting(generator, halved, ("sharp", "kinked", "huber", "curved"))
    iterations, step = choose(generator, 1, 2, 5, 20), 10 ** uniform(generator, -1.5, 0.5)
    given = given_divergence(generator, halved)

    def case(genes: Tensor) -> Outcome:
        problem, mirror, start, divergence = setting(Genes(genes))
        record = Record.of(lmd.run(solver(mirror, step), problem, start, iterations))
        if halved == "||g||":
            record = lying(record, "subgradient_norm", 0.5)
        return compare(problem, record, regret_certificate(record, given(divergence)).lower_bound, "mean")

    return case


def lazy_regret(generator: torch.Generator, halved: str | None) -> Case:
    return regret(generator, halved, LazyMirrorDescent)


def sloppy(genes: Genes, n: int, kind: str, sigma: float, step: float, halved: str | None, settled: bool) -> Setting:
    """An inverse that is off; `settled` starts where gradient and offset cancel, so that every step is as bad."""
    problem = bowls(genes, Shape(n, kind), halved)
    exact = stretched(genes, n, sigma, F64, halved)
    offset = genes.powers(1, 3) * genes.take(n)
    mirror = Sloppy(exact.d, sigma, offset)
    mirror.lies = halved
    away = exact.d * offset / (step * problem.c.clamp(min=1e-9)) if settled else genes.powers(1, 2) * genes.take(n)
    return measured(problem, mirror, problem.minimiser() + away)


def learned_inverse(generator: torch.Generator, halved: str | None, relative: bool) -> Case:
    n, sigma, settled = choose(generator, 1, 2), 10 ** uniform(generator, -1, 1), choose(generator, True, True, False)
    kind = "curved" if relative or settled else choose(generator, "curved", "kinked")
    iterations, step = (
        choose(generator, *((20, 50 if relative else 150) if settled else (2, 10))),
        10 ** uniform(generator, -2, 0),
    )

    def case(genes: Tensor) -> Outcome:
        setting = sloppy(Genes(genes), n, kind, sigma, step, halved, settled)
        record = Record.of(lmd.run(MirrorDescent(setting.mirror, step), setting.problem, setting.start, iterations))
        if halved == "||e||":
            record = lying(record, "dual_residual", 0.5)
        if relative:
            return compare(
                setting.problem, record, relative_certificate(record, divergence=setting.divergence).lower_bound
            )
        return compare(setting.problem, record, regret_certificate(record, setting.divergence).lower_bound)

    return case


def inexact_regret(generator: torch.Generator, halved: str | None) -> Case:
    return learned_inverse(generator, halved, relative=False)


def inexact_relative(generator: torch.Generator, halved: str | None) -> Case:
    return learned_inverse(generator, halved, relative=True)


def relative(generator: torch.Generator, halved: str | None) -> Case:
    strong = halved == "1/mu" or choose(generator, True, False)
    setting = any_setting(generator, halved, ("curved",) if strong else ("huber",))
    iterations, step = choose(generator, 1, 2, 5, 30), 10 ** uniform(generator, -2, 0)
    given = given_divergence(generator, halved)

    def case(genes: Tensor) -> Outcome:
        problem, mirror, start, divergence = setting(Genes(genes))
        record = Record.of(lmd.run(MirrorDescent(mirror, step), problem, start, iterations))
        known = isinstance(problem, KLDivergence) and isinstance(mirror, Entropic)  # 1-smooth relative to the entropy
        certificate = relative_certificate(record, 1.0 if known else None, 1.0 if known else None, given(divergence))
        return compare(problem, record, certificate.lower_bound, "best" if strong else "mean")

    return case


def backtracked(generator: torch.Generator, halved: str | None) -> Case:
    setting = any_setting(generator, halved, ("huber", "curved", "sharp"))
    iterations = choose(generator, 1, 3, 10, 30)
    given = given_divergence(generator, halved)

    def case(genes: Tensor) -> Outcome:
        problem, mirror, start, divergence = setting(Genes(genes))
        record = Record.of(lmd.run(BacktrackedMirrorDescent(mirror), problem, start, iterations))
        if halved == "M":
            record = lying(lying(record, "step_size", 2.0), "relative_smoothness", 0.5)
        seen = Roomless(**vars_of(record)) if halved == ROOM else record
        return compare(problem, record, relative_certificate(seen, divergence=given(divergence)).lower_bound, "mean")

    return case


def accelerated(generator: torch.Generator, halved: str | None) -> Case:
    setting = any_setting(generator, halved, ("huber", "curved", "sharp"))
    iterations = choose(generator, 2, 3, 10, 30)
    given = given_divergence(generator, halved)

    def case(genes: Tensor) -> Outcome:
        problem, mirror, start, divergence = setting(Genes(genes))
        record = Record.of(lmd.run(BacktrackedMirrorDescent(mirror, accelerated=True), problem, start, iterations))
        if halved == "1/A":
            record = lying(record, "weight", 2.0)
        seen = Roomless(**vars_of(record)) if halved == ROOM else record
        return compare(problem, record, accelerated_certificate(seen, given(divergence)).lower_bound)

    return case


def rounded_history(generator: torch.Generator, halved: str | None) -> Case:
    """Least squares in float32 with a condition number of up to 10^7, minimisers far from 0, starts near them."""
    n, iterations = choose(generator, 2, 4, 6), choose(generator, 1, 5, 30)
    kind = choose(generator, MirrorDescent, LazyMirrorDescent, "plain", "accelerated")
    left, _, right = torch.linalg.svd(torch.randn(n, n, dtype=F64, generator=generator))
    spread, far, near = uniform(generator, 0, 3.5), 10 ** uniform(generator, 0, 5), 10 ** uniform(generator, -8, -2)
    W = (left * torch.logspace(0, -spread, n, dtype=F64)) @ right * 10 ** uniform(generator, -2, 2)
    matrix = torch.randn(n, n, dtype=F64, generator=generator)
    matrix = matrix @ matrix.T + 10 ** uniform(generator, -4, -2) * torch.eye(n, dtype=F64)
    mirror = Quadratic.from_matrix(matrix.float()).requires_grad_(False)
    given = given_divergence(generator, None)

    def case(genes: Tensor) -> Outcome:
        taken = Genes(genes)
        b = far * taken.take(n) @ W.T + 1e-5 * taken.powers(1, 7) * taken.take(n)
        problem = LeastSquares(W.float(), b.float())
        minimiser = problem.double().minimiser()
        start = (minimiser + near * taken.take(n)).float()
        step = float(mirror.strong_convexity / problem.smoothness)
        backtracked = BacktrackedMirrorDescent(mirror, accelerated=kind == "accelerated")
        solver = backtracked if isinstance(kind, str) else kind(mirror, step)
        record = Record.of(lmd.run(solver, problem, start, iterations))
        seen = Roomless(**vars_of(record)) if halved == ROOM else record
        away = start.double() - minimiser
        divergence = (away @ mirror.factor.tril().double()).square().sum(dim=1) / 2
        certificates = (regret_certificate, relative_certificate, accelerated_certificate)
        parts = [certificate(seen, divergence=given(divergence)) for certificate in certificates]
        lower = torch.stack([part.lower_bound for part in parts]).amax(dim=0)
        return compare(problem, record, lower)

    return case


class Wedge(Problem):
    """F(x) = max(0, -<v, x>) + b |x_1| in two variables, of which b |x_1| is smoothed: the minimum is 0, at 0.

    It makes the bound for falling widths tight: a step along v = (w b, H) / a from x = (0, -H), H^2 just above
    a w b^2, ends at (w b, 0), where F is w b^2 and F_w half of that; the bound is w b^2 (1 + w / 2a).
    """

    batched = ("v", "b")

    def __init__(self, v: Tensor, b: Tensor) -> None:
        self.v, self.b = v, b

    def value(self, x: Tensor) -> Tensor:
        return (-(self.v * x).sum(dim=1)).clamp(min=0) + self.b * x[:, 0].abs()

    def smoothed_gradient(self, x: Tensor, width: Tensor | float) -> tuple[Tensor, Tensor]:
        p = torch.minimum(torch.maximum(x[:, 0] / width, -self.b), self.b)
        gradient = torch.where((self.v * x).sum(dim=1, keepdim=True) < 0, -self.v, 0.0)
        return gradient + torch.stack([p, torch.zeros_like(p)], dim=1), p[:, None]

    def smoothed_value(self, x: Tensor, width: Tensor | float) -> Tensor:
        p = torch.minimum(torch.maximum(x[:, 0] / width, -self.b), self.b)
        return (-(self.v * x).sum(dim=1)).clamp(min=0) + p * x[:, 0] - width / 2 * p.square()


class Widths(NamedTuple):
    """A problem, its minimiser, a start, a mirror, R^2 `(B,)` and what widths are divided by."""

    problem: Problem
    minimiser: Tensor
    start: Tensor
    mirror: Stretched
    reach: Tensor
    unit: float


def shrunk(genes: Genes, n: int, scale: float) -> Widths:
    """F(x) = s ||x - y||^2 + b |x|, whose minimiser is y shrunk by b / 2s."""
    y, b = genes.take(n), genes.powers(1, 1.5)[:, 0]
    minimiser = y.sign() * (y.abs() - b[:, None] / (2 * scale)).clamp(min=0)
    start = minimiser + genes.powers(1, 2) * genes.take(n)
    problem = Composite(Squares(y, scale), (L1(b), lmd.operators.Identity()), start=start)
    return Widths(problem, minimiser, start, stretched(genes, n, 1.0, F64, None), n * b.square(), 2 * scale)


def wedge(genes: Genes, width: float) -> Widths:
    """A wedge near the tight one, for the first curvature that backtracking tries."""
    step, b, near = 1 / 0.9, genes.powers(1, 1)[:, 0], 1 + 0.3 * torch.tanh(genes.take(4))
    along, across = width * b, (step * width * b.square() + (width * b).square()).sqrt()
    v = torch.stack([along * near[:, 0], across * near[:, 1]], dim=1) / step
    start = torch.stack([along * (near[:, 2] - 1), -across * near[:, 3]], dim=1)
    mirror = Stretched(torch.ones_like(v), 1.0)
    return Widths(Wedge(v, b), torch.zeros_like(v), start, mirror, b.square(), 1.0)


def accelerated_bound(weights: Tensor, divergence: Tensor | float, widths: Tensor, reach: Tensor | float) -> Tensor:
    r"""A bound on F(x_k) - min F for k = 1, ..., K, `(K, B)`: with A_k the weights, and B the divergence B(x*, x_0),

        (B + \sum_{1 <= j < k} A_j (w_{j-1} - w_j) R^2 / 2) / A_k + w_{k-1} R^2 / 2,

    where step j from x_j had the width w_j, the falling `widths` `(K, B)` from w_0 on, and `reach` is
    R^2 = max ||p||^2 over the domain of g*. For a smooth F all widths are 0, and it is B / A_k.
    """
    raised = weights[:-1] * (widths[:-1] - widths[1:])  # F_w rises where the width falls, from the second step on
    total = torch.cat([torch.zeros_like(weights[:1]), raised.cumsum(dim=0)])
    return (divergence + total * reach / 2) / weights + widths * reach / 2


def falling_widths(generator: torch.Generator, halved: str | None) -> Case:
    n, iterations, scale = choose(generator, 1, 2), choose(generator, 1, 2, 3, 8, 30), 10 ** uniform(generator, -1, 1)
    width, delay = 10 ** uniform(generator, -4, 2), 10 ** uniform(generator, -2, 2)
    tight = halved == "R^2" or choose(generator, True, False)
    iterations = choose(generator, 1, 1, 2) if tight else iterations
    width = 10 ** uniform(generator, -4, 0) if tight else width

    def case(genes: Tensor) -> Outcome:
        taken = Genes(genes)
        given = wedge(taken, width) if tight else shrunk(taken, n, scale)
        problem, weights = given.problem, []
        solver = BacktrackedMirrorDescent(given.mirror, width, delay, accelerated=True)
        state = solver.init(problem, given.start)
        for _ in range(iterations):
            state = solver.step(problem, state)
            weights.append(state.weight)
        first = 1 if halved == "w_k for w_{k-1}" else 0  # as it was printed once
        widths = torch.tensor([width * delay / (delay + first + k) for k in range(iterations)], dtype=F64)
        divergence = given.mirror.divergence(given.minimiser, given.start) / (2 if halved == "B(x*, x_0)" else 1)
        reach = given.reach / (2 if halved == "R^2" else 1)
        bound = accelerated_bound(torch.stack(weights), divergence, widths[:, None] / given.unit, reach)
        minimum = problem.value(given.minimiser)
        return Outcome(problem.value(state.x) - minimum, bound[-1], 1e-13 * (minimum + problem.value(given.start)))

    return case


def growth(generator: torch.Generator, halved: str | None) -> Case:
    """For a smooth f, M <= max(0.9, 2 L / sigma), and A_k >= sigma k^2 / (8 L) if all M <= 2 L / sigma.

    Both are returned as a ratio to their bound.
    """
    n, kind, plain = choose(generator, 1, 2), choose(generator, "curved", "huber"), choose(generator, True, False)
    plain = {"2L": True, "8L": False}.get(halved or "", plain)
    n, kind, lengths = (2, "curved", (30,)) if halved == "8L" else (n, kind, (1, 5, 30, 100))
    iterations, near = choose(generator, *lengths), 10 ** uniform(generator, -1, 1)

    def case(genes: Tensor) -> Outcome:
        problem, mirror, start, _ = in_space(Genes(genes), Shape(n, kind), 1.0, near, None)
        solver = BacktrackedMirrorDescent(mirror, accelerated=not plain)
        state, largest = solver.init(problem, start), torch.zeros(len(start), dtype=F64)
        for _ in range(iterations):
            state = solver.step(problem, state)
            largest = torch.maximum(largest, state.curvature)
        L, still = problem.smoothness, (state.x - problem.minimiser()).square().sum(dim=1) < 1e-20  # rounding decides
        most = (1 if halved == "2L" else 2) * L
        if plain:
            return Outcome(largest, torch.where(still, torch.inf, most.clamp(min=0.9)), 1e-9 * most)
        least = iterations**2 / ((4 if halved == "8L" else 8) * L)
        said = (largest <= 2 * L) & ~still
        return Outcome(least, torch.where(said, state.weight, torch.inf), 1e-9 * least)

    return case


# --- Lemma 2 and Theorem 6: strong convexity -------------------------------------------------------------------------


class Rough(Stretched):
    """A potential of which no smoothness is known."""

    @property
    def smoothness(self) -> None:
        return None


def divergences(generator: torch.Generator, halved: str | None) -> Case:
    """B(x*, x_0) from a start alone."""
    setting = any_setting(generator, halved, ("curved", "kinked"))
    rough = halved != "mirror's L" and choose(generator, True, False)

    def case(genes: Tensor) -> Outcome:
        problem, mirror, start, divergence = setting(Genes(genes))
        if rough and isinstance(mirror, Stretched):
            mirror.__class__ = Rough
        record = Record.of(lmd.run(MirrorDescent(mirror, 1e-3), problem, start, 1))
        mu = record.strong_convexity(mirror.norm)
        radius = None if mu is None else record.subgradient_norms[0] / mu.value
        bound = divergence_bound(mirror, start, radius)
        said = torch.full_like(divergence, torch.inf) if bound is None else bound.value
        rounding = 64 * torch.finfo(start.dtype).eps * divergence  # certificates leave room for that
        return Outcome(divergence, said, rounding + 1e-14 * mirror.potential(start).double())

    return case


def strong_convexity(generator: torch.Generator, halved: str | None) -> Case:
    """At the answer of any solver, and at the iterates of mirror descent."""
    setting = any_setting(generator, halved, ("curved", "kinked"))
    iterations, step = choose(generator, 1, 3), 10 ** uniform(generator, -6, 0)

    def case(genes: Tensor) -> Outcome:
        problem, mirror, start, _ = setting(Genes(genes))
        record = Record.of(lmd.run(MirrorDescent(mirror, step), problem, start, iterations))
        return compare(problem, record, subgradient_certificate(record).lower_bound)

    return case


# --- Duality, Theorem 7 ----------------------------------------------------------------------------------------------


def exact_tv(x: list[float], y: list[float], kept: list[float], scale: float, bound: float) -> Fraction:
    """F(x) - min F of a short signal in exact arithmetic.

    The minimiser is flat on blocks, and on each of them the mean of what is kept, moved by the signs of the steps at
    its ends: the best of all patterns of signs is the minimum.
    """
    s, b = Fraction(scale), Fraction(bound)
    points, data = [Fraction(v) for v in x], [Fraction(v) for v in y]

    def value(at: list[Fraction]) -> Fraction:
        misfit = sum((s * (v - d) ** 2 for v, d, k in zip(at, data, kept, strict=True) if k), Fraction(0))
        return misfit + b * sum((abs(q - p) for p, q in itertools.pairwise(at)), Fraction(0))

    return value(points) - min(value(at) for at in _candidates(data, kept, b / (2 * s)))


def _candidates(data: list[Fraction], kept: list[float], shift: Fraction) -> Iterator[list[Fraction]]:
    n = len(data)
    for pattern in range(3 ** (n - 1)):
        signs = [pattern // 3**i % 3 - 1 for i in range(n - 1)]
        at, start, before = [], 0, 0
        for end in range(n):
            after = signs[end] if end < n - 1 else 0
            if end < n - 1 and after == 0:
                continue
            block = [data[i] for i in range(start, end + 1) if kept[i]]
            if not block:
                break
            level = (sum(block, Fraction(0)) - shift * (before - after)) / len(block)
            at += [level] * (end + 1 - start)
            start, before = end + 1, after
        if len(at) == n:
            yield at


def gaps(generator: torch.Generator, halved: str | None) -> Case:
    """Signals near their minimiser, down to the last digit, with dual points that are nearly the best."""
    n, dtype, masked = choose(generator, 2, 3), choose(generator, torch.float32, F64), choose(generator, True, False)
    offset, digits = choose(generator, 0.0, 1.0, 1e3, 1e6), choose(generator, 0.0, 4.0, 8.0, 16.0)
    halves, weight = choose(generator, True, False), 10 ** uniform(generator, -2, 1)

    def case(genes: Tensor) -> Outcome:
        taken = Genes(genes)
        y = (offset + taken.take(n) * taken.powers(1, 2)).to(dtype)[:, None]
        kept = torch.ones_like(y) if not masked else (taken.take(n) > -0.5).to(dtype)[:, None]
        kept[:, :, 0] = 1
        problem = TVInpainting(y, kept, weight, halved=halves) if masked else TVDenoising(y, weight, halved=halves)
        numbers = [(each[:, 0].double()).tolist() for each in (y, kept)]
        bound, scale = float(problem.bound), problem.scale
        best = [_best(*each, scale, bound) for each in zip(*numbers, strict=True)]
        near = torch.tensor(best, dtype=F64)
        p = (2 * scale * kept[:, 0] * (near - y[:, 0].double())).cumsum(dim=1)
        x = (near + 10**-digits * taken.powers(1, 1) * taken.take(n)).to(dtype)
        p = (p + 10**-digits * taken.powers(1, 1) * taken.take(n))[:, None, None].to(dtype)
        _, gap = problem.certified_gap(x[:, None], p)
        if halved == ROOM:
            exact = problem.double()
            gap = exact.gap(x[:, None].double(), exact.g.project(p.double()))
        each = zip(x.double().tolist(), *numbers, strict=True)
        truth = torch.tensor([float(exact_tv(*case, scale, bound)) for case in each], dtype=F64)
        return Outcome(truth, gap / (2 if halved == "gap" else 1), 1e-14 * truth)

    return case


def exact_gap(x: list[float], y: list[float], p: list[float], scale: float, bound: float) -> Fraction:
    """sum b |z| - p z + s (x - y + K'p / 2s)^2 of a short signal with z = Kx in exact arithmetic."""
    s, b = Fraction(scale), Fraction(bound)
    points, data, duals = ([Fraction(v) for v in each] for each in (x, y, p))
    steps = [after - before for before, after in itertools.pairwise(points)]
    pulls = [before - after for before, after in itertools.pairwise([Fraction(0), *duals[: len(steps)], Fraction(0)])]
    residual = sum((b * abs(z) - q * z for z, q in zip(steps, duals, strict=False)), Fraction(0))
    return residual + sum((s * (v - d + u / (2 * s)) ** 2 for v, d, u in zip(points, data, pulls, strict=True)), s * 0)


def rooms(generator: torch.Generator, halved: str | None) -> Case:
    """How far a computed gap is below the true one, beside the room for that: signals of up to 6 numbers."""
    n, offset = choose(generator, 2, 3, 6), choose(generator, 0.0, 1.0, 1e3, 1e6)
    digits, weight = choose(generator, 0.0, 4.0, 8.0, 16.0), 10 ** uniform(generator, -2, 1)
    halves, few = choose(generator, True, False), choose(generator, True, False)

    def case(genes: Tensor) -> Outcome:
        taken = Genes(genes)
        y = (offset + taken.take(n) * taken.powers(1, 2))[:, None]
        problem = TVDenoising(y, weight, halved=halves)
        b, scale = float(problem.bound), problem.scale
        p = torch.nn.functional.pad(1.2 * b * torch.tanh(taken.take(n - 1)), (0, 1)).clamp(-b, b)
        p = (torch.round(2**20 * p) / 2**20 if few else p).clamp(-b, b)[:, None, None]
        x = (
            problem.f.tilted_minimiser(problem.operator.adjoint(p))
            + 10**-digits * (taken.powers(1, 1) * taken.take(n))[:, None]
        )
        _, gap, room = proven_gap(problem, x, p)
        each = zip(*(rows.reshape(len(y), n).tolist() for rows in (x, y, p)), gap.tolist(), strict=True)
        missed = [float(exact_gap(a, d, q, scale, b) - Fraction(found)) for a, d, q, found in each]
        room = room / (64 if halved == "room / 64" else 1)
        return Outcome(torch.tensor(missed, dtype=F64), room, 0 * room)

    return case


def _best(data: list[float], kept: list[float], scale: float, bound: float) -> list[float]:
    def value(at: list[Fraction]) -> float:
        misfit = sum(scale * float(v - Fraction(d)) ** 2 for v, d, k in zip(at, data, kept, strict=True) if k)
        return misfit + bound * sum(abs(float(q - p)) for p, q in itertools.pairwise(at))

    shift = Fraction(bound) / (2 * Fraction(scale))
    return [float(v) for v in min(_candidates([Fraction(d) for d in data], kept, shift), key=value)]


def lasso_gaps(generator: torch.Generator, halved: str | None) -> Case:
    """s ||A x - b||^2 + w |x| in one variable, where -A'p has to be in the domain of f*, |A'p| <= w."""
    m, dtype, scale = choose(generator, 1, 2, 5), choose(generator, torch.float32, F64), choose(generator, 0.5, 1.0)
    column = torch.randn(m, 1, dtype=F64, generator=generator) * 10 ** uniform(generator, -2, 2)
    weight, digits = 10 ** uniform(generator, -2, 2), choose(generator, 0.0, 4.0, 8.0, 16.0)
    digits, dtype = (16.0, F64) if halved == ROOM else (digits, dtype)
    A = column.to(dtype)

    def case(genes: Tensor) -> Outcome:
        taken = Genes(genes)
        b = (taken.powers(1, 3) * taken.take(m)).to(dtype)
        entries, w, s = [Fraction(v) for v in A[:, 0].tolist()], Fraction(weight), Fraction(scale)
        square = sum((v * v for v in entries), Fraction(0))

        def value(x: Fraction, data: list[Fraction]) -> Fraction:
            return s * sum(((v * x - d) ** 2 for v, d in zip(entries, data, strict=True)), Fraction(0)) + w * abs(x)

        data = [[Fraction(v) for v in row] for row in b.double().tolist()]
        slopes = [sum((v * d for v, d in zip(entries, row, strict=True)), Fraction(0)) for row in data]
        best = [(1 if g > 0 else -1) * max(abs(g) - w / (2 * s), Fraction(0)) / square for g in slopes]
        near = torch.tensor([[float(v)] for v in best], dtype=F64)
        p = 2 * scale * (near @ A.double().T - b.double())
        x = (near + 10**-digits * taken.powers(1, 2) * taken.take(1)).to(dtype)
        p = (p + 10**-digits * taken.powers(1, 2) * taken.take(m)).to(dtype)
        problem = Composite(L1(weight), (Squares(b, scale), lmd.operators.Matrix(A)), start=x)
        gap = problem.certified_gap(x, p)[1]
        if halved == ROOM:
            gap = problem.double().gap(x.double(), p.double())
        points = zip(x[:, 0].double().tolist(), data, best, strict=True)
        truth = torch.tensor([float(value(Fraction(v), row) - value(top, row)) for v, row, top in points], dtype=F64)
        return Outcome(truth, gap / (2 if halved == "gap" else 1), 1e-14 * truth)

    return case


def compiled_denoising(generator: torch.Generator, halved: str | None) -> Case:
    """Compiled solves in float32, beside the best that a solve in float64 finds."""
    size = choose(generator, (1, 2), (1, 9), (3, 3), (6, 7), (2, 20))
    isotropic, weight = choose(generator, True, False), 10 ** uniform(generator, -2, 1)
    tolerance, offset = 10 ** uniform(generator, -3.3, -1), choose(generator, 0.0, 1.0, 30.0)

    def case(genes: Tensor) -> Outcome:
        taken = Genes(genes)
        pixels = size[0] * size[1]
        y = (offset + taken.powers(1, 1) * taken.take(pixels)).reshape(-1, 1, *size).float()
        problem = TVDenoising(y, weight, isotropic)
        result = lmd.solve(problem, tolerance)
        exact = problem.double()
        value, certificate = exact.value(result.x.double()), result.certificate
        lowest = lmd.solve(exact, 1e-7).values
        return Outcome(value - lowest, certificate.bound / (2 if halved == "gap" else 1), 1e-13 * value)

    return case


# --- Theorems 8 and 9: safeguards ------------------------------------------------------------------------------------


class Wild(Solver[State]):
    """A learned solver that answers with points near the minimiser, far from it, or with NaNs."""

    def __init__(self, solution: Tensor, moves: Tensor) -> None:
        super().__init__()
        self.solution, self.moves = solution, moves

    @property
    def step_cost(self) -> dict[str, int]:
        return {}

    def init(self, problem: Problem, x0: Tensor) -> State:
        return State(x0)

    def step(self, problem: Problem, state: State) -> State:
        move = self.moves[:, state.iteration % self.moves.shape[1], None]
        move = torch.where(move > 3, torch.nan, 10 ** (2 * move)) * torch.ones_like(state.x)
        return State(self.solution + move, state.iteration + 1)


def safeguard(generator: torch.Generator, halved: str | None) -> Case:
    n, kind, delay = (
        choose(generator, 1, 3),
        choose(generator, "curved", "huber", "sharp"),
        choose(generator, 0, 1, 2, 4),
    )
    step, iterations = 10 ** uniform(generator, -2, 0), 12

    def case(genes: Tensor) -> Outcome:
        taken = Genes(genes)
        problem = bowls(taken, Shape(n, kind), None)
        solution, start = problem.minimiser(), 3 * taken.take(n)
        fallback = GradientDescent(step)
        guarded = Safeguard(Wild(solution, taken.take(8)), fallback, delay)
        ours = lmd.run(guarded, problem, start, iterations).history.values - problem.minimum()
        theirs = (
            lmd.run(fallback, problem, start, iterations, divergence_factor=1e300).history.values - problem.minimum()
        )
        late = range(delay + 1, iterations + 1)
        steps = [0] * (delay + 1) + [k if halved == "2d" else min(k, 2 * (k - delay)) for k in late]
        said = torch.minimum(theirs[steps], torch.cat([ours[:1], ours[:-1]]))
        worst = (ours / said.clamp(min=1e-300)).nan_to_num().argmax(dim=0)[None]
        return Outcome(ours.gather(0, worst)[0], said.gather(0, worst)[0], 1e-14 * ours[0])

    return case


def descent(generator: torch.Generator, halved: str | None) -> Case:
    """Each step gains ||g||^2 / (4 L), and the gap falls by 1 - mu / (2 L), and as 4 L R^2 / (k + 8)."""
    n, kind = choose(generator, 1, 2, 3), choose(generator, "curved", "huber")
    claims = {"4L": ("gain",), "2L": ("rate",), "4 L R^2": ("level",)}.get(halved or "", ("gain", "rate", "level"))
    claim = choose(generator, *claims)
    n, kind = {"rate": (n, "curved"), "level": (1, "huber")}.get(claim, (n, kind))
    step, iterations = 10 ** uniform(generator, -3, 0), choose(generator, 1, 4)
    learned = choose(generator, "gradient", "mirror")

    def case(genes: Tensor) -> Outcome:
        taken = Genes(genes)
        problem = bowls(taken, Shape(n, kind), halved)
        start = problem.minimiser() + taken.take(n)
        mirror = stretched(taken, n, 1.0, F64, None)
        solver = DescentSafeguard(GradientDescent(step) if learned == "gradient" else MirrorDescent(mirror, step))
        state, L, mu = solver.init(problem, start), problem.smoothness, problem.strong_convexity
        values, gains = [problem.value(start)], []
        for _ in range(iterations):
            gains.append(problem.subgradient(state.x).square().sum(dim=1) / ((2 if halved == "4L" else 4) * L))
            state = solver.step(problem, state)
            values.append(problem.value(state.x))
        gap, rounding = torch.stack(values) - problem.minimum(), 1e-13 * (values[0] + problem.minimum().abs())
        if claim == "rate":
            said = (1 - mu / ((1 if halved == "2L" else 2) * L)).clamp(min=0) ** iterations * gap[0]
            return Outcome(gap[-1], said, rounding)
        if claim == "level":  # of one variable, and the same on both sides
            squared = (start - problem.minimiser()).square().sum(dim=1)
            return Outcome(gap[-1], (2 if halved == "4 L R^2" else 4) * L * squared / (iterations + 8), rounding)
        sure, gained = torch.stack(gains), -gap.diff(dim=0)
        worst = (sure / gained.clamp(min=1e-300)).argmax(dim=0)[None]
        return Outcome(sure.gather(0, worst)[0], gained.gather(0, worst)[0].clamp(min=0), rounding)

    return case


# --- Promises about a class ------------------------------------------------------------------------------------------


def coverage(generator: torch.Generator, halved: str | None) -> Case:
    """The probability that a promise is false, in closed form, for a share p of the class, n runs and a confidence."""

    def broken(runs: int, share: float, confidence: float) -> float:
        low, high = 0, runs + 1  # the fewest successes from which on more than the share is promised
        while low < high:
            middle = (low + high) // 2
            more = middle > runs or least_share(middle, runs, confidence) > share
            low, high = (low, middle) if more else (middle + 1, high)
        return math.fsum(math.comb(runs, k) * share**k * (1 - share) ** (runs - k) for k in range(low, runs + 1))

    def case(genes: Tensor) -> Outcome:
        runs = (1 + 40 * genes[:, 0].abs()).long().tolist()
        shares = torch.sigmoid(2 * genes[:, 1]).tolist()
        deltas = (0.5 * torch.sigmoid(genes[:, 2])).tolist()
        truth = [broken(n, p, 1 - d) for n, p, d in zip(runs, shares, deltas, strict=True)]
        bound = torch.tensor(deltas, dtype=F64) / (2 if halved == "delta" else 1)
        return Outcome(torch.tensor(truth, dtype=F64), bound, torch.full_like(bound, 1e-12))

    return case


def basin(genes: Genes, n: int) -> tuple[Callable[[Tensor], tuple[Tensor, Tensor]], Tensor]:
    """f(u) = sum_i max(a_i u_i, -G_i (u_i + r_i), H_i (u_i - q_i)), with its gradient, and its minimum `(B,)`.

    In one variable, where a is small beside G and H, and u = 0, s, -s are on three sides of it, the bound is tight.
    """
    slope, left, right = genes.take(n), genes.powers(n, 2), genes.powers(n, 2)
    near, far = (torch.sigmoid(genes.take(n)) for _ in range(2))
    lines = torch.stack([slope, -left, right], dim=-1), torch.stack([0 * slope, -left * near, -right * far], dim=-1)

    def f(u: Tensor) -> tuple[Tensor, Tensor]:
        height, side = (lines[0] * u[..., None] + lines[1]).max(dim=-1)
        return height.sum(dim=1), lines[0].gather(-1, side[..., None])[..., 0]

    down = slope > 0  # to the left
    wall, reach = torch.where(down, left, right), torch.where(down, near, far)
    flat = slope.abs()
    return f, -(flat * wall * reach / (flat + wall)).sum(dim=1)


def bent(genes: Genes, n: int) -> tuple[Callable[[Tensor], tuple[Tensor, Tensor]], Tensor]:
    """f(u) = ||z||^2 / 2 + sum_i c_i (cosh z_i - 1) with z = u + A u - b, and its minimum, 0."""
    A, b, c = 0.2 * genes.take(n * n).reshape(-1, n, n), 0.3 * genes.take(n), genes.powers(n, 2)
    A = A + torch.eye(n, dtype=F64)

    def f(u: Tensor) -> tuple[Tensor, Tensor]:
        z = (A @ u[..., None])[..., 0] - b
        value = (z.square() / 2 + 2 * c * (z / 2).sinh().square()).sum(dim=1)
        return value, (A.mT @ (z + c * z.sinh())[..., None])[..., 0]

    return f, torch.zeros(len(b), dtype=F64)


def enclosure(generator: torch.Generator, halved: str | None) -> Case:
    """2n + 1 tangents around u = 0, with weights of all kinds: those that cancel the gradients, and any others."""
    n, shape = choose(generator, 1, 1, 2, 3), choose(generator, basin, bent)
    n, shape = (1, basin) if halved == "R" else (n, shape)
    s, sharp, first = 10 ** uniform(generator, -1, 1), choose(generator, 0.3, 3.0), choose(generator, 0.0, 8.0)
    own = halved != "R" and choose(generator, True, False)

    def case(genes: Tensor) -> Outcome:
        taken = Genes(genes)
        f, minimum = shape(taken, n)
        units = torch.cat([torch.zeros(1, n, dtype=F64), torch.eye(n, dtype=F64), -torch.eye(n, dtype=F64)])
        tangents = [f((s * unit).expand(len(genes), n)) for unit in units]
        values, gradients = (torch.stack(each, dim=1) for each in zip(*tangents, strict=True))
        others = torch.softmax(sharp * taken.take(2 * n + 1) + first * units.eq(0).all(dim=1), dim=1)
        size = torch.full((len(genes),), s / (2 if halved == "s" else 1), dtype=F64)
        level, slope, radius = enclose(values, gradients, size, balance(gradients) if own else others)
        bound = (level - slope * radius / (2 if halved == "R" else 1)).nan_to_num(nan=-math.inf)
        return Outcome(values[:, 0] - minimum, values[:, 0] - bound, 1e-12 * (1 + values.abs().amax(dim=1)))

    return case


def parabola(generator: torch.Generator, halved: str | None) -> Case:
    """f(u) = ||u - b||^2 / 2 with ||b|| <= s / 4n is enclosed to a fortieth of the width, 5 s^2."""
    n, s = choose(generator, 1, 2, 5, 12), 10 ** uniform(generator, -3, 1)

    def case(genes: Tensor) -> Outcome:
        taken = Genes(genes)
        b = torch.nn.functional.normalize(taken.powers(n, 3) * taken.take(n), dim=1) * s / (4 * n)
        b = b * torch.sigmoid(taken.take(1) + 2)
        units = s * torch.cat([torch.zeros(1, n, dtype=F64), torch.eye(n, dtype=F64), -torch.eye(n, dtype=F64)])
        gradients = units - b[:, None]
        values, size = gradients.square().sum(dim=2) / 2, torch.full((len(genes),), s, dtype=F64)
        level, slope, radius = enclose(values, gradients, size, balance(gradients))
        low = level - slope * radius
        return Outcome(-low, 5 * size.square() / (80 if halved == "width / 40" else 40), 1e-12 * size.square())

    return case


class Hollow(Problem):
    """f(x) = o + sum_i l_i ((1 + z_i^2)^{1/2} - 1), z = W x - c with W of full rank: the minimum is o."""

    batched = ("l", "c", "o")
    lies: str | None = None

    def __init__(self, W: Tensor, l: Tensor, c: Tensor, o: Tensor) -> None:  # noqa: E741
        self.W, self.l, self.c, self.o = W, l, c, o

    def value(self, x: Tensor) -> Tensor:
        squares = (x @ self.W.T - self.c).square()
        return self.o + (self.l * squares / (1 + (1 + squares).sqrt())).sum(dim=1)

    def subgradient(self, x: Tensor) -> Tensor:
        z = x @ self.W.T - self.c
        return (self.l * z / (1 + z.square()).sqrt()) @ self.W / (2 if self.lies == "g" else 1)

    def value_and_subgradient(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.value(x), self.subgradient(x)


def proven_minima(generator: torch.Generator, halved: str | None) -> Case:
    """What promises go by: minimisers up to 10^8 from 0, curvatures that differ by up to 10^6."""
    n, far = choose(generator, 1, 2, 4), 10 ** uniform(generator, 0, 8)
    spread, width = uniform(generator, 0, 3), 10 ** uniform(generator, -8, -1)
    W = torch.randn(n, n, dtype=F64, generator=generator)

    def case(genes: Tensor) -> Outcome:
        taken = Genes(genes)
        b, l, o = far * taken.take(n), taken.powers(n, spread), 1e-3 * taken.powers(1, 2)[:, 0]  # noqa: E741
        problem, start = Hollow(W, l, b @ W.T, o), b + 0.1 * taken.take(n)
        problem.lies = halved
        x, low = lower_bounds(problem, start, None, width * o)
        value = problem.value(x)
        return Outcome(value - o, value - low, 0 * o)

    return case


def alarms(generator: torch.Generator, halved: str | None) -> Case:
    """The probability that a `Monitor` ever raises a false alarm, over all patterns of up to 12 instances."""
    count, bet = choose(generator, 1, 4, 12), 10 ** uniform(generator, -0.5, 2.5)
    patterns = torch.tensor(list(itertools.product((False, True), repeat=count)))

    def case(genes: Tensor) -> Outcome:
        outside = torch.sigmoid(2 * genes[:, 0] - 1)
        deltas = torch.sigmoid(genes[:, 1])
        truth = []
        for q, delta in zip(outside.tolist(), deltas.tolist(), strict=True):
            monitor = Monitor(Promise(1e-3, 1, 1, 1, 1 - q, 0.95), delta, bet)
            evidence, alarm = torch.zeros(len(patterns), dtype=F64), torch.zeros(len(patterns), dtype=torch.bool)
            for t, fails in enumerate(patterns.T, 1):
                evidence = torch.where(fails, monitor.outside, monitor.within) * (evidence + 1 / (t * (t + 1)))
                alarm |= evidence >= monitor.limit
            failures = patterns.sum(dim=1)
            chances = q**failures * (1 - q) ** (count - failures)
            truth.append(float(chances[alarm].sum()))
        bound = deltas / (2 if halved == "delta" else 1)
        return Outcome(torch.tensor(truth, dtype=F64), bound, torch.full_like(bound, 1e-12))

    return case


ADVERSARIES = (
    Adversary("Theorem 1, exact mirror", regret, ("B(x*, x_0)", "1/sigma", "||g||")),
    Adversary("Theorem 1, lazy form", lazy_regret, ("B(x*, x_0)", "1/sigma", "||g||")),
    Adversary("Theorem 1, learned inverse", inexact_regret, ("||e||", "1/mu")),
    Adversary("Lemma 2 and B(x*, x_0)", divergences, ("1/mu", "mirror's L")),
    Adversary("Theorem 2, exact mirror", relative, ("B(x*, x_0)", "L", "1/mu")),
    Adversary("Theorem 2, learned inverse", inexact_relative, ("||e||", "1/mu")),
    Adversary("Theorem 3", backtracked, ("B(x*, x_0)", "M", ROOM)),
    Adversary("Theorem 4", accelerated, ("B(x*, x_0)", "1/A", ROOM)),
    Adversary("Theorems 3 and 4, M and A", growth, ("2L", "8L")),
    Adversary("Theorem 5", falling_widths, ("B(x*, x_0)", "R^2", "w_k for w_{k-1}")),
    Adversary("Theorem 6", strong_convexity, ("1/mu",)),
    Adversary("Theorem 7 and weak duality", gaps, ("gap", ROOM)),
    Adversary("Theorem 7, room", rooms, ("room / 64",)),
    Adversary("Theorem 7, lasso", lasso_gaps, ("gap", ROOM)),
    Adversary("Theorem 7, compiled", compiled_denoising, ("gap",), genes=64),
    Adversary("Rounding of the history", rounded_history, (ROOM,), generations=2),
    Adversary("Theorem 8", safeguard, ("2d",)),
    Adversary("Theorem 9", descent, ("4L", "2L", "L", "4 L R^2")),
    Adversary("Theorem 10", coverage, ("delta",), genes=3),
    Adversary("Theorem 11", enclosure, ("R", "s")),
    Adversary("Theorem 11, parabola", parabola, ("width / 40",)),
    Adversary("Proven minima", proven_minima, ("g",)),
    Adversary("Theorem 12", alarms, ("delta",), genes=2),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=10_000, help="instances for each theorem, and for each constant")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="part of a name: only the theorems that have it in theirs")
    arguments = parser.parse_args()
    print(f"{'theorem':<30}{'tries':>8}{'worst ratio':>14}{'violations':>12}{'s':>7}  with a constant halved")
    failed = 0
    for adversary in (each for each in ADVERSARIES if arguments.only in each.theorem):
        begun = time.perf_counter()
        true = search(adversary, arguments.tries, arguments.seed)
        seconds = time.perf_counter() - begun
        caught = {c: search(adversary, arguments.tries, arguments.seed, c, enough=1) for c in adversary.constants}
        said = "; ".join(
            f"{c}: " + (f"caught after {f.tries}" if f.violations else f"MISSED, worst {f.worst:.3f}")
            for c, f in caught.items()
        )
        print(
            f"{adversary.theorem:<30}{true.tries:>8}{true.worst:>14.6f}{true.violations:>12}{seconds:>7.1f}  {said}",
            flush=True,
        )
        failed += true.violations + sum(not f.violations for f in caught.values())
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
