"""The theorems: each turns the record of a run into a certificate. Statements and proofs are in docs/guarantees.md."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmd.errors import InputError
from lmd.guarantees.record import ROUNDING, Record
from lmd.mirrors.base import Mirror, norm_of
from lmd.problems.base import offers
from lmd.problems.penalised import split_of
from lmd.solvers.result import Certificate, Constant
from lmd.terms import Box, Simplex
from lmd.terms.base import Term, inner, per_instance
from lmd.terms.domains import Domain, same_set

REGRET = "the regret bound of approximate mirror descent (the paper's first theorem of section 3)"
CLASSICAL = "the regret bound of mirror descent with an exact mirror (Beck and Teboulle 2003, theorem 4.1)"
RELATIVE = "the bound under relative smoothness (section 3.1 of the paper, in computable form)"
ACCELERATED = "the bound of accelerated mirror descent with backtracking, A (f(x) - min f) <= B(x*, x_0)"
SUBGRADIENT = "strong convexity at a point, min f >= f(x) - ||g||^2 / (2 mu)"
BOUNDED = "convexity at a point of a bounded domain, min f >= f(x) + min_z <g, z - x>"
DUALITY = "weak duality, the gap to a dual point"

Number = float | Tensor

MAX_VERTICES = 512  # evaluations of a potential for a bound on the divergence
EPSILON = torch.finfo(torch.float64).eps  # the rounding of the numbers here


def regret_certificate(record: Record, divergence: Number | None = None) -> Certificate:
    r"""min f >= \sum_k w_k f(x_k) - regret / \sum_k t_k with w_k = t_k / \sum_j t_j; the best over all prefixes.

    `divergence` is B(x*, x_0) or anything above it, a number or one per instance `(B,)`; without it, it is bounded.
    The classical theorem is the case of an exact mirror, in which f need not be strongly convex.
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
    r"""A bound on \sum_{j <= k} t_j (f(x_j) - f*) for each k, `(K, B)`: B(x*, x_0) plus, for each j,

        (t ||g||_* + ||e||_*)^2 / (2 sigma) + max_{0 <= d <= R} (||e||_* d - t mu/2 d^2),   R = ||g||_* / mu.

    The paper rounds this up to t^2 ||g||_*^2 / sigma + (1 / (2 t mu) + 1 / sigma) ||e||_*^2.
    """
    t, g, e = record.steps, record.subgradient_norms, record.residuals
    change = (t * g + e).square() / (2 * constants["sigma"].value)
    drift = torch.where(e == 0, e, torch.inf)  # a NaN stays one
    if "mu" in constants:
        mu = constants["mu"].value
        distance = torch.minimum(e / (t * mu), g / mu)
        drift = torch.where(e == 0, e, e * distance - t * mu / 2 * distance.square())
    regret = constants["divergence"].value + (change + drift).cumsum(dim=0)
    return with_rounding(regret, record.step_rounding(t), constants)


def with_rounding(bound: Tensor, rounding: Tensor, constants: dict[str, Constant]) -> Tensor:
    """A bound `(K, B)` that B(x*, x_0) and what the steps add make up, with room for the rounding of each step.

    Rounding adds r_k ||x* - x_{k+1}|| to step k, and the distance is at most (2 B(x*, x_{k+1}) / sigma)^{1/2}, where
    the divergence is below the bound itself. So the root of the bound grows by at most (2 / sigma)^{1/2} r_k per step.
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
    """The bound for f that is L-smooth and mu-strongly convex relative to the potential, steps of at most 1 / L.

    L and mu are given, or bounded by L_f / sigma and mu_f / L_Psi from the constants of f and of the potential. Where
    steps were found by backtracking, each was seen to be short enough, and no L has to be known.
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
    r"""Sum up (1 - c)/t_k B(x*, x_{k+1}) + f(x_{k+1}) - f* <= (1/t_k - mu) B(x*, x_k) + error_k, which telescopes.

    error_k is ||e||_* R / t_k with c = 0, or, `absorbed`, ||e||_*^2 / (2 c sigma t_k). Rounding adds r_k / t_k times a
    distance, as in `with_rounding`. Only the ratios of the weights matter, so they never overflow: `share` is the
    weight of the newest term among all so far.
    """
    t, e, values = record.steps, record.residuals, record.values[1:]
    rounding = record.step_rounding(t)
    L, sigma, seen = constants["L"].value, constants["sigma"].value, record.relative_smoothness
    mu = constants["relative mu"].value if "relative mu" in constants else torch.zeros_like(L)
    steps, best = len(t), torch.full_like(record.value, -torch.inf)
    lower, share, valid = best, torch.ones_like(best), torch.ones_like(best, dtype=torch.bool)
    ahead, root = torch.zeros_like(best), constants["divergence"].value.sqrt()  # (1 - c)/t of the step before; B^{1/2}
    spread = (2 / sigma).sqrt()
    for k in range(steps):
        short = t[k] * (L if seen is None else seen[k]) <= 1 + 4 * record.epsilon
        valid = valid & short & torch.isfinite(e[k]) & torch.isfinite(values[k])
        slope = torch.maximum(1 / t[k] - mu, 1e-9 / t[k])  # a smaller mu is a mu too
        if absorbed:
            c = torch.where(e[k] == 0, 0.0, (mu * t[k] / 2).clamp(min=1 / (steps + 1), max=0.5))
            error = torch.where(e[k] == 0, 0.0, e[k].square() / (2 * c * sigma * t[k]))
        else:
            c = torch.zeros_like(t[k])
            error = torch.where(e[k] == 0, 0.0, e[k] * _radius(record, constants, k + 1) / t[k])
        if seen is not None:
            error = error + seen[k] * record.divergence_rounding  # of the rule that backtracking went by
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
    """min f >= f(x_k) - B(x*, x_0) / A_k in every iteration k, with the weights A_k that backtracking found.

    The rule may be missed by a few units of rounding in each step, which add up with the weights.
    """
    mirror, weights = record.solver.geometry, record.diagnostics.get("weight")
    if mirror is None or weights is None or not same_set(mirror.domain, record.problem.domain):
        return nothing(record, f"{ACCELERATED}; it needs that method, on a smooth problem")
    constants, values = _regret_constants(record, mirror, divergence), record.values[:-1]
    missed = record.rounding(values.abs().amax(dim=0)) * weights[:-1].cumsum(dim=0) / weights[:-1]
    rounding = record.step_rounding(weights[:-1].diff(dim=0))
    rules = record.divergence_rounding.expand_as(rounding).cumsum(dim=0)  # of the rules that backtracking went by
    divergences = with_rounding(constants["divergence"].value + rules, rounding, constants)
    lower = values[1:] - accelerated_bound(weights[1:-1], divergences) - missed[1:]
    best = _best(lower) if len(lower) else torch.full_like(record.value, -torch.inf)
    return _certificate(record, best, ACCELERATED, mirror.norm, constants)


def accelerated_bound(weights: Tensor, divergence: Number, widths: Tensor | None = None, reach: Number = 0.0) -> Tensor:
    r"""A bound on F(x_k) - min F for k = 1, ..., K, `(K, B)`: with A_k the weights, and B the divergence B(x*, x_0),

        (B + \sum_{1 <= j < k} A_j (w_{j-1} - w_j) R^2 / 2) / A_k + w_{k-1} R^2 / 2,

    where step j from x_j had the width w_j, the falling `widths` `(K, B)` from w_0 on, and `reach` is
    R^2 = max ||p||^2 over the domain of g*. For a smooth F there are no widths, and it is B / A_k.
    """
    if widths is None:
        return divergence / weights
    raised = weights[:-1] * (widths[:-1] - widths[1:])  # F_w rises where the width falls, from the second step on
    total = torch.cat([torch.zeros_like(weights[:1]), raised.cumsum(dim=0)])
    return (divergence + total * reach / 2) / weights + widths * reach / 2


def _radius(record: Record, constants: dict[str, Constant], k: int) -> Tensor:
    """Return a bound on ||x_k - x*|| `(B,)`."""
    if "mu" not in constants or k >= len(record.subgradient_norms):
        return torch.full_like(record.value, torch.inf)
    return record.subgradient_norms[k] / constants["mu"].value


def subgradient_certificate(record: Record) -> Certificate:
    """min f >= f(x) + min_z <g, z - x> + mu/2 ||z - x||^2 at the answer, and at every iterate whose ||g|| is known.

    The minimum over z is at the projection of x - g/mu onto the domain; where f is a smooth function plus a penalty h,
    g is the gradient of the former, and the minimum is that of h(z) added, at prox_{h/mu}(x - g/mu). With mu = 0 it is
    finite where the domain is bounded: at its point where <g, z> is least. It is not tried where there is a dual point
    of a composite problem: the subgradients of TV do not vanish at a minimiser, the gap does.
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
    # g is a difference of terms of the size of L ||x||, or of mu ||x|| at least, and the fall is g times a length.
    curvature = record.smoothness("l2") or constant
    size = norm_of(g, "l2") + (norm_of(first, "l2") if curvature is None else curvature.value * norm_of(x, "l2"))
    off = 0.0 if split.term is None else norm_of(g, "l2") * norm_of(x, "l2")  # points of a set are rounded
    lower = record.exact_value - fall - record.answer_rounding(record.value.abs() + size * length + off)
    mirror = record.mirror
    if constant is not None and mirror is not None and mirror.norm == "l2" and mirror.domain is None:
        values = record.values[:-1]
        falls = record.subgradient_norms.square() / (2 * constant.value)
        lower = torch.maximum(lower, _best(values - falls - record.rounding(values.abs() + falls)))
    if constant is None:
        return _certificate(record, lower, BOUNDED, "l2", {})
    return _certificate(record, lower, SUBGRADIENT, "l2", {"mu": constant})


def _fall(record: Record, term: Term | None, g: Tensor, constant: Constant | None) -> tuple[Tensor, Tensor]:
    """Return how far the minimum can be below f(x) `(B,)`, and how far away it can be."""
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
    """min F >= F(x) - gap(x, p) for the dual point p of the solver."""
    problem: Any = record.problem
    dual = record.dual
    if dual is None or not offers(problem, ("certified_gap",)):
        return nothing(record, f"{DUALITY}; it needs a problem with a dual and a solver that keeps a dual point")
    with torch.no_grad():
        value, gap = problem.certified_gap(record.x, dual)
    return gap_certificate(value.tolist(), gap.tolist(), record.value.tolist(), value)


def gap_certificate(
    value: Sequence[float], gap: Sequence[float], reported: Sequence[float], like: Tensor
) -> Certificate:
    """Return the certificate of F(x) and its certified gap, B of each, on the device of `like`.

    The bound holds for the values that were reported as well.
    """
    ends = [_ends(*each) for each in zip(value, gap, reported, strict=True)]
    lower, above, gaps = (
        torch.from_numpy(np.array(numbers)).to(like.device)  # in a third of the time of torch.tensor
        for numbers in (*zip(*ends, strict=True), gap)
    )
    return Certificate(above, lower, DUALITY, "l2", {"gap": Constant(gaps, "the problem's gap")})


UNITS = ROUNDING * EPSILON  # of rounding, relative to a value


def _ends(value: float, gap: float, reported: float) -> tuple[float, float]:
    """Return a lower bound on the minimum, and an upper bound on F(x) and on the reported value."""
    lower = value - gap - UNITS * (abs(value) + gap)
    above = reported if value != value or reported > value else value
    return (min(lower, above) if lower == lower else -math.inf), above  # nothing is known of a NaN


def nothing(record: Record, theorem: str) -> Certificate:
    """Return a certificate that proves nothing."""
    return Certificate(record.value, torch.full_like(record.value, -torch.inf), theorem, "l2")


def _regret_constants(record: Record, mirror: Mirror, divergence: Number | None) -> dict[str, Constant]:
    """Return sigma, the divergence, and mu where f is strongly convex."""
    constants = {"sigma": Constant(mirror.strong_convexity.double(), "the mirror's strong convexity")}
    mu = record.strong_convexity(mirror.norm)
    if mu is not None:
        constants["mu"] = mu
    found: Constant | None = None
    if divergence is not None:
        found = Constant(_per_instance(record, "divergence", divergence), "given")
    else:
        found = divergence_bound(mirror, record.start, None if mu is None else record.subgradient_norms[0] / mu.value)
    unknown = Constant(torch.full_like(record.value, torch.inf), "unknown: give a bound on B(x*, x_0)")
    return {**constants, "divergence": unknown if found is None else found}


def _relative_constants(
    record: Record, mirror: Mirror, smoothness: Number | None, strong_convexity: Number | None
) -> dict[str, Constant]:
    constants, norm = {}, mirror.norm
    if smoothness is not None:
        constants["L"] = Constant(_per_instance(record, "smoothness", smoothness), "given")
    elif (smooth := record.smoothness(norm)) is not None and bool(mirror.strong_convexity > 0):
        constants["L"] = Constant(smooth.value / mirror.strong_convexity, f"{smooth.origin} / sigma")
    if strong_convexity is not None:
        constants["relative mu"] = Constant(_per_instance(record, "strong_convexity", strong_convexity), "given")
    elif (mu := record.strong_convexity(norm)) is not None and mirror.smoothness is not None:
        constants["relative mu"] = Constant(mu.value / mirror.smoothness, f"{mu.origin} / the mirror's smoothness")
    return constants


def _per_instance(record: Record, argument: str, number: Number) -> Tensor:
    value = torch.as_tensor(number, dtype=torch.float64, device=record.value.device)
    if value.shape not in ((), record.value.shape) or not bool((value >= 0).all()):
        raise InputError(argument, f"{number}", f"a number of 0 or more, or one per instance ({len(record.value)},)")
    return value


def _best(lower: Tensor) -> Tensor:
    """Return the best of the prefixes `(K, B)` before anything unknown, `(B,)`."""
    known = torch.isfinite(lower).long().cumprod(dim=0)
    return torch.where(known == 1, lower, -torch.inf).amax(dim=0)


def _certificate(record: Record, lower: Tensor, theorem: str, norm: str, constants: dict[str, Constant]) -> Certificate:
    return Certificate(record.value, torch.where(lower.isnan(), -torch.inf, lower), theorem, norm, constants)


def divergence_bound(mirror: Mirror, x0: Tensor, radius: Tensor | None) -> Constant | None:
    """Return a bound on B(x, x0) `(B,)`, over the domain or over ||x - x0|| <= radius `(B,)`; None where there is none.

    B(., x0) is convex, so over a polytope it is highest at a vertex: of the simplex, where that is the domain, or of
    the cross-polytope that contains the ball. Where the potential is smooth, L/2 radius^2 bounds it over the ball.
    """
    bounds = []
    if isinstance(mirror.domain, Simplex):
        bounds.append(Constant(_simplex(mirror, x0), "the highest divergence of a vertex of the simplex"))
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


@torch.no_grad()
def _simplex(mirror: Mirror, x0: Tensor) -> Tensor:
    vertices = torch.eye(x0.shape[1], dtype=x0.dtype, device=x0.device)
    return torch.stack([mirror.divergence(vertex.expand_as(x0), x0).double() for vertex in vertices]).amax(dim=0)


@torch.no_grad()
def _cross_polytope(mirror: Mirror, x0: Tensor, radius: Tensor) -> Tensor:
    """The l1 ball is one; the l2 ball fits into the one that is sqrt(n) times as large, the l-infinity ball into n."""
    n = x0[0].numel()
    reach = radius * {"l1": 1.0, "l2": math.sqrt(n), "linf": float(n)}[mirror.norm]
    highest, slope = torch.zeros_like(reach), mirror.to_dual(x0)
    for unit in torch.eye(n, dtype=x0.dtype, device=x0.device):
        move = per_instance(reach.to(x0.dtype), x0) * unit.reshape(x0.shape[1:])
        for vertex in (x0 + move, x0 - move):
            size = mirror.potential(vertex).abs() + mirror.potential(x0).abs() + inner(slope, move).abs()
            rounding = ROUNDING * torch.finfo(x0.dtype).eps * size
            highest = torch.maximum(highest, (mirror.divergence(vertex, x0) + rounding).double())
    return highest
