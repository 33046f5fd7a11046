"""Certificates of runs: a record of what the theorems need, a function for each theorem, and the best certificate.

Statements and proofs are in docs/guarantees.md.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, ParamSpec

import torch
from torch import Tensor

from lmd import solvers
from lmd.errors import InputError
from lmd.mirrors.base import DUAL_NORM, Mirror, norm_of
from lmd.problems.base import Problem, offers, split_of
from lmd.solvers.base import Solver
from lmd.solvers.result import DUALITY, ROUNDING, Certificate, Constant, Result, gap_certificate
from lmd.terms import Box, Simplex
from lmd.terms.base import Term, inner, per_instance, take
from lmd.terms.domains import Domain, same_set

REGRET = "the regret bound of approximate mirror descent (the paper's first theorem of section 3)"
CLASSICAL = "the regret bound of mirror descent with an exact mirror (Beck and Teboulle 2003, theorem 4.1)"
RELATIVE = "the bound under relative smoothness (section 3.1 of the paper, in computable form)"
ACCELERATED = "the bound of accelerated mirror descent with backtracking, A (f(x) - min f) <= B(x*, x_0)"
SUBGRADIENT = "strong convexity at a point, min f >= f(x) - ||g||^2 / (2 mu)"
BOUNDED = "convexity at a point of a bounded domain, min f >= f(x) + min_z <g, z - x>"

Number = float | Tensor
P = ParamSpec("P")

MAX_VERTICES = 512  # maximum number of evaluations of a potential to bound a divergence


@dataclass(frozen=True)
class Record:
    """The numbers of a finished or running solve that certificates need, in float64.

    Bounds at the answer are evaluated in float64 if the problem can be converted (`exact`). Bounds from the history
    leave room for the rounding of the run, whose rounding unit is `epsilon`.
    """

    units: ClassVar[float] = ROUNDING

    solver: Solver[Any]
    problem: Problem

    start: Tensor  # x_0 `(B, ...)`
    x: Tensor  # the points `(B, ...)` to certify
    reported: Tensor  # f(x) `(B,)` as the run reports it
    values: Tensor  # f(x_k) `(K+1, B)` for k = 0, ..., K, or smaller values that a wrapper reports
    diagnostics: Mapping[str, Tensor]  # diagnostics of the solver at x_k `(K+1, B)`
    dual: Tensor | None = None  # a dual point for each instance

    @classmethod
    def of(cls, result: Result) -> Record:
        """Return the record of a finished run."""
        history = result.history
        return cls(
            result.solver,
            result.problem,
            result.start,
            result.x,
            result.values.double(),
            history.values.double(),
            {name: numbers.double() for name, numbers in history.diagnostics.items()},
            result.dual,
        )

    @property
    def mirror(self) -> Mirror | None:
        """The mirror, if the run was mirror descent (lazy or not) on the domain of the problem; otherwise None."""
        mirror = self.solver.geometry
        recorded = "step_size" in self.diagnostics  # False for a run without iterations
        return mirror if mirror is not None and recorded and same_set(mirror.domain, self.problem.domain) else None

    @property
    def steps(self) -> Tensor:
        """The step sizes t_k `(K, B)`; NaN after an instance has stopped."""
        return self.diagnostics["step_size"][:-1]

    @property
    def subgradient_norms(self) -> Tensor:
        """||g_k||_* `(K, B)` in the dual norm of the mirror, plus room for the rounding of g_k."""
        return self.diagnostics["subgradient_norm"][:-1] + self._gradient_rounding

    @property
    def residuals(self) -> Tensor:
        """||e_{k+1}||_* `(K, B)` with e_{k+1} = to_dual(x_{k+1}) - (to_dual(x_k) - t_k g_k); NaN if it is unknown.

        Exact mirrors have residual 0, except in steps in which they clipped; there it is unknown.
        """
        clipped = self.diagnostics.get("clipped", torch.zeros_like(self.values))[:-1]
        if self.mirror is not None and self.mirror.is_exact:
            return torch.zeros_like(clipped).masked_fill_(clipped != 0, torch.nan)
        return self.diagnostics.get("dual_residual", torch.full_like(self.values, torch.nan))[1:]

    @property
    def relative_smoothness(self) -> Tensor | None:
        """The estimates M_k `(K, B)` with which step k of backtracking satisfied its rule; NaN if none did."""
        seen = self.diagnostics.get("relative_smoothness")
        return None if seen is None else seen[:-1]

    @cached_property
    def exact(self) -> Problem:
        """The problem in float64, or the problem itself if it cannot be converted."""
        exact = self.problem.double()
        return self.problem if exact is None else exact

    @cached_property
    def answer(self) -> Tensor:
        """x in the dtype of `exact`."""
        return self.x if self.exact is self.problem else self.x.double()

    @cached_property
    def exact_value(self) -> Tensor:
        """f(x) `(B,)`."""
        with torch.no_grad():
            return self.exact.value(self.answer).double()

    @cached_property
    def value(self) -> Tensor:
        """The larger of f(x) and the reported value `(B,)`, because a bound has to hold for both."""
        return torch.fmax(self.exact_value, self.reported)

    @property
    def epsilon(self) -> float:
        """The rounding unit of the run."""
        return torch.finfo(self.start.dtype).eps

    @property
    def answer_epsilon(self) -> float:
        """The rounding unit with which `exact` is evaluated."""
        return torch.finfo(self.answer.dtype).eps

    def strong_convexity(self, norm: str) -> Constant | None:
        """Return the strong convexity mu of f in a norm. ||v||_2^2 is at least ||v||_1^2 / n and ||v||_inf^2."""
        factor = 1 / self.start[0].numel() if norm == "l1" else 1.0
        return self._constant(self._strong_convexity, factor, "the problem's strong convexity", norm)

    def smoothness(self, norm: str) -> Constant | None:
        """Return the smoothness L of f in a norm. ||v||_2^2 is at most ||v||_1^2 and at most n ||v||_inf^2."""
        factor = float(self.start[0].numel()) if norm == "linf" else 1.0
        return self._constant(self._smoothness, factor, "the problem's smoothness", norm)

    @cached_property
    def _strong_convexity(self) -> Tensor | None:
        """The strong convexity mu of f, reduced by the rounding error of a computed smallest eigenvalue."""
        mu = self._in_float64(self.exact.strong_convexity)
        if mu is None or self._smoothness is None:
            return mu
        return (mu - self.start[0].numel() * self.answer_epsilon * self._smoothness).clamp(min=0)

    @cached_property
    def _smoothness(self) -> Tensor | None:
        return self._in_float64(self.exact.smoothness)

    def _in_float64(self, constant: Any) -> Tensor | None:
        return None if constant is None else torch.as_tensor(constant, dtype=torch.float64, device=self.start.device)

    def rounding(self, size: Tensor, epsilon: float | None = None) -> Tensor:
        """Return a bound on the rounding error of values of this size; `epsilon` defaults to the unit of the run.

        A computed f(x) is f at a distance d of `units` roundings from x. Its error is at most sqrt(2 L f) d + L d^2.
        """
        relative = self.units * (self.epsilon if epsilon is None else epsilon)
        noise = self._curvature * (relative * self._length).square()
        return relative * size + 2 * (size * noise).sqrt() + noise

    def step_rounding(self, steps: Tensor) -> Tensor:
        """Return how far rounding moves to_dual(x_{k+1}) from to_dual(x_k) - t_k g_k, in the dual norm `(K, B)`.

        This is at most `units` roundings of to_dual(x_k) and t_k g_k, plus t_k times the error of g_k. `steps` is t_k.
        """
        size = self._dual_size + steps * self.subgradient_norms[: len(steps)]
        return self.units * self.epsilon * size + steps * self._gradient_rounding

    @cached_property
    def divergence_rounding(self) -> Tensor:
        """The rounding error of a divergence B(x_{k+1}, x_k) of the run `(B,)`, in which potentials cancel.

        It is 0 if the mirror has a closed form for the divergence.
        """
        mirror = self.solver.geometry
        if mirror is None or type(mirror).divergence is not Mirror.divergence:
            return torch.zeros_like(self.value)
        with torch.no_grad():
            ends = [mirror.potential(x).abs().double() + self._dual_size * norm_of(x, mirror.norm) for x in self._ends]
        return self.units * self.epsilon * (ends[0] + ends[1])

    @cached_property
    def _dual_size(self) -> Tensor:
        """The larger ||to_dual(x)||_* of the start and of the answer `(B,)`."""
        mirror = self.solver.geometry
        assert mirror is not None
        with torch.no_grad():
            sizes = [norm_of(mirror.to_dual(x), DUAL_NORM[mirror.norm]).double() for x in self._ends]
        return torch.maximum(*sizes)

    @property
    def _ends(self) -> tuple[Tensor, Tensor]:
        """The start and the answer. If the answer is not finite, the start takes its place."""
        return self.start, take(torch.isfinite(self.x.flatten(1)).all(dim=1), self.x, self.start)

    @cached_property
    def _curvature(self) -> Tensor:
        """L of f `(B,)` or `()`; mu if only mu is known; 0 if neither is known."""
        curvature = self._strong_convexity if self._smoothness is None else self._smoothness
        return torch.zeros_like(self.value) if curvature is None else curvature.double()

    @cached_property
    def _length(self) -> Tensor:
        """The larger ||x|| of the start and of the answer `(B,)`."""
        return torch.maximum(norm_of(self.x, "l2"), norm_of(self.start, "l2")).double()

    @property
    def _gradient_rounding(self) -> Tensor:
        """The error `(B,)` of a recorded subgradient: it is exact at a point `units` roundings away from x."""
        return self.units * self.epsilon * self._curvature * self._length

    def _constant(self, value: Tensor | None, factor: float, origin: str, norm: str) -> Constant | None:
        if value is None or not bool((value > 0).any()):
            return None
        scaled = "" if factor == 1 else f", from l2 to {norm}"
        return Constant(factor * value.double(), origin + scaled)


def certify(
    run: Result | Record,
    *,
    divergence: Number | None = None,
    relative_smoothness: Number | None = None,
    relative_strong_convexity: Number | None = None,
) -> Certificate:
    """Return a certificate for the answer of a run: for each instance, the best bound of all theorems that apply.

    Constants that are not given are taken or bounded from the problem and the mirror. `result.certificate` is
    `certify(result)`.

    Args:
        run: The result of a run, or its record.
        divergence: An upper bound on B(x*, x_0): a number, or one per instance `(B,)`.
        relative_smoothness: L of f relative to the potential (section 3.1 of the paper), a number or `(B,)`.
        relative_strong_convexity: mu of f relative to the potential, a number or `(B,)`.

    >>> import lmd
    >>> problem, x0 = lmd.problems.LeastSquaresFamily().sample(3, torch.Generator().manual_seed(0))
    >>> solver = lmd.solvers.MirrorDescent(lmd.mirrors.Euclidean(), 1 / 18)
    >>> result = lmd.run(solver, problem, x0, iterations=20)
    >>> bool((result.certificate.bound >= result.values - problem.minimum()).all())
    True
    >>> bool((result.certificate.bound < 0.1 * problem.value(x0)).all())
    True
    """
    record = run if isinstance(run, Record) else Record.of(run)
    parts = (
        duality_certificate(record),
        subgradient_certificate(record),
        regret_certificate(record, divergence),
        accelerated_certificate(record, divergence),
        relative_certificate(record, relative_smoothness, relative_strong_convexity, divergence),
    )
    return best_of(parts)


def best_of(parts: Sequence[Certificate]) -> Certificate:
    """Return the best bound for each instance, from one or more certificates of the same answer."""
    lower = torch.stack([part.lower_bound for part in parts]).amax(dim=0)
    used = [part for part in parts if bool((part.proven & (part.lower_bound == lower)).any())]
    if len(used) == 1:
        return replace(used[0], lower_bound=lower)
    theorem = "the best of " + " and ".join(part.theorem for part in used or parts)
    norms = {part.norm for part in used or parts}
    return Certificate(parts[0].value, lower, theorem, " or ".join(sorted(norms)), parts=tuple(used or parts))


def regret_certificate(record: Record, divergence: Number | None = None) -> Certificate:
    r"""Return the best bound of Theorem 1 over all prefixes of a run. With an exact mirror, f may have mu = 0.

    The bound is min f >= \sum_k w_k f(x_k) - regret / \sum_k t_k with w_k = t_k / \sum_j t_j. `divergence` is an upper
    bound on B(x*, x_0), a number or one per instance `(B,)`; None computes one.
    """
    mirror = record.mirror
    theorem = CLASSICAL if mirror is not None and mirror.is_exact else REGRET
    if mirror is None or not bool(mirror.strong_convexity > 0):
        return nothing(record, f"{theorem}; it needs mirror descent with a strongly convex potential")
    constants = _regret_constants(record, mirror, divergence)
    bound = regret_bound(record, mirror, constants)
    total = record.steps.cumsum(dim=0)
    means = (record.steps * record.values[:-1]).cumsum(dim=0) / total
    lower = means - bound / total - record.rounding(record.values[:-1].abs().cummax(dim=0).values + bound / total)
    return _certificate(record, _best(lower), theorem, mirror.norm, constants)


def regret_bound(record: Record, mirror: Mirror, constants: dict[str, Constant]) -> Tensor:
    r"""Return bounds on \sum_{j <= k} t_j (f(x_j) - f*) for each k, `(K, B)`: B(x*, x_0) plus, for each j <= k,

        (t ||g||_* + ||e||_*)^2 / (2 sigma) + max_{0 <= d <= R} (||e||_* d - t mu/2 d^2),   R = ||g||_* / mu.

    e is the residual. The paper rounds this up to t^2 ||g||_*^2 / sigma + (1 / (2 t mu) + 1 / sigma) ||e||_*^2.
    """
    t, g, e = record.steps, record.subgradient_norms, record.residuals
    change = (t * g + e).square() / (2 * constants["sigma"].value)
    drift = torch.where(e == 0, e, torch.inf)
    if "mu" in constants:
        mu = constants["mu"].value
        distance = torch.minimum(e / (t * mu), g / mu)
        drift = torch.where(e == 0, e, e * distance - t * mu / 2 * distance.square())
    regret = constants["divergence"].value + (change + drift).cumsum(dim=0)
    return with_rounding(regret, record.step_rounding(t), constants)


def with_rounding(bound: Tensor, rounding: Tensor, constants: dict[str, Constant]) -> Tensor:
    """Return the bound `(K, B)` on a sum over the steps of a run, with room for the rounding of each step.

    Rounding adds r_k ||x* - x_{k+1}|| to step k. The distance is at most (2 B(x*, x_{k+1}) / sigma)^{1/2}, and this
    divergence is below the bound itself. So the root of the bound grows by at most (2 / sigma)^{1/2} r_k per step.
    `bound` never falls with k, and `rounding` is r_k `(K, B)` in the dual norm.
    """
    growth = (2 / constants["sigma"].value).sqrt() * rounding.cumsum(dim=0)
    return (bound.sqrt() + growth).square()


def relative_certificate(
    record: Record,
    smoothness: Number | None = None,
    strong_convexity: Number | None = None,
    divergence: Number | None = None,
) -> Certificate:
    """Return the bound of Theorem 2 for steps of at most 1 / L, or of Theorem 3 for steps found by backtracking.

    L and mu are the constants of f relative to the potential. If they are not given, they are L_f / sigma and
    mu_f / L_Psi, with the constants of f and of the potential. Backtracking checks every step, so it needs no L.
    """
    mirror = record.mirror
    if mirror is None or (record.solver.accumulates and mirror.domain is not None):
        return nothing(record, f"{RELATIVE}; it needs mirror descent, and not the lazy form on a domain")
    constants = _regret_constants(record, mirror, divergence)
    constants |= _relative_constants(record, mirror, smoothness, strong_convexity)
    if (seen := record.relative_smoothness) is not None:
        constants["L"] = Constant(seen.nan_to_num(nan=0.0).amax(dim=0), "the largest that backtracking found")
    if "L" not in constants:
        return nothing(record, f"{RELATIVE}; it needs the relative smoothness, or a smooth f and strong convexity")
    lower = torch.maximum(*(_relative_lower(record, constants, absorbed) for absorbed in (False, True)))
    return _certificate(record, lower, RELATIVE, mirror.norm, constants)


def _relative_lower(record: Record, constants: dict[str, Constant], absorbed: bool) -> Tensor:
    r"""Return lower bounds on min f `(B,)` from the weighted sum over k of the inequalities of Theorem 2,

    (1 - c)/t_k B(x*, x_{k+1}) + f(x_{k+1}) - f* <= (1/t_k - mu) B(x*, x_k) + error_k. error_k is ||e||_* R / t_k with
    c = 0 or, if `absorbed`, ||e||_*^2 / (2 c sigma t_k). Rounding adds r_k / t_k times a distance (`with_rounding`).
    `share` is the newest weight over the sum of all weights so far. Only ratios are computed: they cannot overflow.
    """
    t, e, values = record.steps, record.residuals, record.values[1:]
    rounding = record.step_rounding(t)
    L, sigma, seen = constants["L"].value, constants["sigma"].value, record.relative_smoothness
    mu = constants["relative mu"].value if "relative mu" in constants else torch.zeros_like(L)
    steps, best = len(t), torch.full_like(record.value, -torch.inf)
    lower, share, valid = best, torch.ones_like(best), torch.ones_like(best, dtype=torch.bool)
    ahead, root = torch.zeros_like(best), constants["divergence"].value.sqrt()  # the previous (1 - c)/t; B^{1/2}
    spread = (2 / sigma).sqrt()
    for k in range(steps):
        short = t[k] * (L if seen is None else seen[k]) <= 1 + 4 * record.epsilon
        valid = valid & short & torch.isfinite(e[k]) & torch.isfinite(values[k])
        slope = torch.maximum(1 / t[k] - mu, 1e-9 / t[k])  # every smaller mu is valid too
        if absorbed:
            c = torch.where(e[k] == 0, 0.0, (mu * t[k] / 2).clamp(min=1 / (steps + 1), max=0.5))
            error = torch.where(e[k] == 0, 0.0, e[k].square() / (2 * c * sigma * t[k]))
        else:
            c = torch.zeros_like(t[k])
            error = torch.where(e[k] == 0, 0.0, e[k] * _radius(record, constants, k + 1) / t[k])
        if seen is not None:
            error = error + seen[k] * record.divergence_rounding  # rounding may violate the rule
        root = ((root.square() + t[k] * error) / (1 - c)).sqrt() + spread * rounding[k] / (1 - c)
        error = error + rounding[k] * torch.minimum(spread * root, _radius(record, constants, k + 1)) / t[k]
        if k == 0:
            lower = values[0] - error - slope * constants["divergence"].value
        else:
            share = 1 / (1 + slope / (ahead * share))
            lower = (1 - share) * lower + share * (values[k] - error)
        ahead = (1 - c) / t[k]
        slack = record.rounding(record.values[: k + 2].abs().amax(dim=0) + (record.value - lower).abs())
        best = torch.where(valid, torch.maximum(best, lower - slack), best)
    return best


def accelerated_certificate(record: Record, divergence: Number | None = None) -> Certificate:
    """Return the best bound of Theorem 4 over all iterations k: min f >= f(x_k) - B(x*, x_0) / A_k.

    A_k is the `weight` of iteration k. Rounding may violate the rule of each step; the bound allows for this error.
    """
    mirror, weights = record.solver.geometry, record.diagnostics.get("weight")
    if mirror is None or weights is None or not same_set(mirror.domain, record.problem.domain):
        return nothing(record, f"{ACCELERATED}; it needs that method, on a smooth problem")
    constants, values = _regret_constants(record, mirror, divergence), record.values[:-1]
    missed = record.rounding(values.abs().amax(dim=0)) * weights[:-1].cumsum(dim=0) / weights[:-1]
    rounding = record.step_rounding(weights[:-1].diff(dim=0))
    rules = record.divergence_rounding.expand_as(rounding).cumsum(dim=0)  # rounding may violate rules by this
    divergences = with_rounding(constants["divergence"].value + rules, rounding, constants)
    lower = values[1:] - divergences / weights[1:-1] - missed[1:]
    best = _best(lower) if len(lower) else torch.full_like(record.value, -torch.inf)
    return _certificate(record, best, ACCELERATED, mirror.norm, constants)


def _radius(record: Record, constants: dict[str, Constant], k: int) -> Tensor:
    """Return an upper bound on ||x_k - x*|| `(B,)`; infinite if f is not strongly convex."""
    if "mu" not in constants or k >= len(record.steps):
        return torch.full_like(record.value, torch.inf)
    return record.subgradient_norms[k] / constants["mu"].value


def subgradient_certificate(record: Record) -> Certificate:
    """Return the bound of Theorem 6, min f >= f(x) + min_z <g, z - x> + mu/2 ||z - x||^2, at the answer and iterates.

    The minimum over z is at the projection of x - g/mu onto the domain. If f is a smooth function plus a penalty h, g
    is the gradient of the smooth part, h(z) - h(x) is added, and z = prox_{h/mu}(x - g/mu). If mu = 0, the domain must
    be bounded. If a composite problem has a dual point, nothing is proven here, because subgradients of TV do not
    vanish at a minimiser; the duality gap does.
    """
    if record.dual is not None and offers(record.problem, ("certified_gap",)):
        return nothing(record, f"{SUBGRADIENT}; there is a dual point, which proves more")
    constant, split = record.strong_convexity("l2"), split_of(record.exact)
    if constant is None and (split.term is None or not split.term.conjugate_is_finite):
        return nothing(record, f"{SUBGRADIENT}; it needs a strongly convex problem, or a bounded domain")
    with torch.no_grad():
        g, first = (split.gradient(x.to(record.answer)).double() for x in (record.answer, record.start))
        fall, length = _fall(record, split.term, g, constant)
    x = record.x.double()
    # g is a difference of terms of size L ||x|| (or at least mu ||x||), and the fall is g times a length.
    curvature = record.smoothness("l2") or constant
    size = norm_of(g, "l2") + (norm_of(first, "l2") if curvature is None else curvature.value * norm_of(x, "l2"))
    off = 0.0 if split.term is None else norm_of(g, "l2") * norm_of(x, "l2")  # points of the domain are rounded
    lower = record.exact_value - fall - record.rounding(record.value.abs() + size * length + off, record.answer_epsilon)
    mirror = record.mirror
    if constant is not None and mirror is not None and mirror.norm == "l2" and mirror.domain is None:
        values = record.values[:-1]
        falls = record.subgradient_norms.square() / (2 * constant.value)
        lower = torch.maximum(lower, _best(values - falls - record.rounding(values.abs() + falls)))
    constants = {} if constant is None else {"mu": constant}
    return _certificate(record, lower, SUBGRADIENT if constants else BOUNDED, "l2", constants)


def _fall(record: Record, term: Term | None, g: Tensor, constant: Constant | None) -> tuple[Tensor, Tensor]:
    """Return bounds on f(x) - min f and on the distance from x to the point that attains the bound, both `(B,)`."""
    x = record.x.double()
    if constant is None:
        assert term is not None
        z = term.tilted_minimiser(g)
        return term.residual(x, -g), norm_of(x - z, "l2")
    mu = constant.value.expand(len(x))
    z = x - g / per_instance(mu, x)
    change = torch.zeros_like(mu)
    if term is not None:
        z = term.prox(z, 1 / mu)
        change = change if isinstance(term, Domain) else term.value(x) - term.value(z)
    return inner(g, x - z) - mu / 2 * (x - z).square().flatten(1).sum(dim=1) + change, norm_of(x - z, "l2")


def duality_certificate(record: Record) -> Certificate:
    """Return the bound of weak duality, min F >= F(x) - gap(x, p), with the dual point p of the solver."""
    problem: Any = record.problem
    dual = record.dual
    if dual is None or not offers(problem, ("certified_gap",)):
        return nothing(record, f"{DUALITY}; it needs a problem with a dual and a solver that keeps a dual point")
    with torch.no_grad():
        value, gap = problem.certified_gap(record.x, dual)
    return gap_certificate(value.tolist(), gap.tolist(), record.value)


def nothing(record: Record, theorem: str) -> Certificate:
    """Return a certificate that proves nothing."""
    return Certificate(record.value, torch.full_like(record.value, -torch.inf), theorem, "l2")


def _regret_constants(record: Record, mirror: Mirror, divergence: Number | None) -> dict[str, Constant]:
    """Return the constants sigma and divergence, and mu if f is strongly convex."""
    mu = record.strong_convexity(mirror.norm)
    if divergence is not None:
        bound = _given(record, "divergence", divergence)
    else:
        radius = None if mu is None else record.subgradient_norms[0] / mu.value
        unknown = Constant(torch.full_like(record.value, torch.inf), "unknown: give a bound on B(x*, x_0)")
        bound = divergence_bound(mirror, record.start, radius) or unknown
    sigma = Constant(mirror.strong_convexity.double(), "the mirror's strong convexity")
    return {"sigma": sigma, **({} if mu is None else {"mu": mu}), "divergence": bound}


def _relative_constants(
    record: Record, mirror: Mirror, smoothness: Number | None, strong_convexity: Number | None
) -> dict[str, Constant]:
    constants, norm = {}, mirror.norm
    if smoothness is not None:
        constants["L"] = _given(record, "smoothness", smoothness)
    elif (smooth := record.smoothness(norm)) is not None and bool(mirror.strong_convexity > 0):
        constants["L"] = Constant(smooth.value / mirror.strong_convexity, f"{smooth.origin} / sigma")
    if strong_convexity is not None:
        constants["relative mu"] = _given(record, "strong_convexity", strong_convexity)
    elif (mu := record.strong_convexity(norm)) is not None and mirror.smoothness is not None:
        constants["relative mu"] = Constant(mu.value / mirror.smoothness, f"{mu.origin} / the mirror's smoothness")
    return constants


def _given(record: Record, argument: str, number: Number) -> Constant:
    value = torch.as_tensor(number, dtype=torch.float64, device=record.value.device)
    if value.shape not in ((), record.value.shape) or not bool((value >= 0).all()):
        raise InputError(argument, f"{number}", f"a number of 0 or more, or one per instance ({len(record.value)},)")
    return Constant(value, "given")


def _best(lower: Tensor) -> Tensor:
    """Return the largest of the bounds `(K, B)` before the first one that is not finite, `(B,)`."""
    known = torch.isfinite(lower).long().cumprod(dim=0)
    return torch.where(known == 1, lower, -torch.inf).amax(dim=0)


def _certificate(record: Record, lower: Tensor, theorem: str, norm: str, constants: dict[str, Constant]) -> Certificate:
    return Certificate(record.value, torch.where(lower.isnan(), -torch.inf, lower), theorem, norm, constants)


@torch.no_grad()
def divergence_bound(mirror: Mirror, x0: Tensor, radius: Tensor | None) -> Constant | None:
    """Return a bound on B(x, x0) `(B,)`, over the domain or over ||x - x0|| <= radius `(B,)`; None if none is known.

    B(., x0) is convex, so its maximum over a polytope is at a vertex. The polytope is the simplex, if it is the domain,
    or a cross-polytope around the ball. If the potential is L-smooth, L/2 d^2 bounds B over a ball or box of radius d.
    """
    bounds = []
    if isinstance(mirror.domain, Simplex):
        vertices = torch.eye(x0.shape[1], dtype=x0.dtype, device=x0.device)
        highest = torch.stack([mirror.divergence(each.expand_as(x0), x0).double() for each in vertices]).amax(dim=0)
        bounds.append(Constant(highest, "the highest divergence of a vertex of the simplex"))
    smooth = mirror.smoothness
    if isinstance(mirror.domain, Box) and smooth is not None:
        far = torch.maximum(x0 - mirror.domain.low, mirror.domain.high - x0).double().square().flatten(1).sum(dim=1)
        bounds.append(Constant(smooth.double() / 2 * far, "the mirror's smoothness at the farthest corner of the box"))
    if radius is not None:
        if smooth is not None:
            within = smooth.double() / 2 * radius.square()
            bounds.append(Constant(within, "the mirror's smoothness over ||x* - x_0|| <= ||g_0||_* / mu"))
        elif mirror.domain is None and 2 * x0[0].numel() <= MAX_VERTICES:
            within = _cross_polytope(mirror, x0, radius)
            bounds.append(Constant(within, "the vertices around ||x* - x_0|| <= ||g_0||_* / mu"))
    return min(bounds, key=lambda bound: float(bound.value.mean()), default=None)


def _cross_polytope(mirror: Mirror, x0: Tensor, radius: Tensor) -> Tensor:
    """Return the largest B(v, x0) `(B,)` over the vertices v of the l1 ball that contains the ball of this radius."""
    n = x0[0].numel()
    reach = radius * {"l1": 1.0, "l2": math.sqrt(n), "linf": float(n)}[mirror.norm]
    highest, slope, height = torch.zeros_like(reach), mirror.to_dual(x0), mirror.potential(x0).abs()
    for unit in torch.eye(n, dtype=x0.dtype, device=x0.device):
        move = per_instance(reach.to(x0.dtype), x0) * unit.reshape(x0.shape[1:])
        for vertex in (x0 + move, x0 - move):
            size = mirror.potential(vertex).abs() + height + inner(slope, move).abs()
            rounding = ROUNDING * torch.finfo(x0.dtype).eps * size
            highest = torch.maximum(highest, (mirror.divergence(vertex, x0) + rounding).double())
    return highest


def _with_certificate(run: Callable[P, Result]) -> Callable[P, Result]:
    @functools.wraps(run)
    def certified(*arguments: P.args, **options: P.kwargs) -> Result:
        return replace(run(*arguments, **options), certifier=certify)

    return certified


run = _with_certificate(solvers.run)  # `lmd.run`: the result of `lmd.solvers.run` with a certificate
