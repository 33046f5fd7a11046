"""Composite problems: the sum of a term f of x itself and terms g_j of K_j x, with linear operators K_j."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from lmd.core.batching import Index, to_double
from lmd.core.checks import check_batch, shape_of
from lmd.errors import CapabilityError, InputError
from lmd.operators import LinearOperator
from lmd.operators.matrix import Stack
from lmd.problems import duality
from lmd.problems.base import Problem, flatten_data
from lmd.terms import Domain, Term
from lmd.terms.base import Pieces, Scale, filled, per_instance, size_of, sum_instances

Pair = tuple[Term, LinearOperator]
"""A term g_j and its operator K_j."""

Block = tuple[Term, LinearOperator, float]
"""A term g_j, its operator K_j, and the scale of K_j x in the stacked array Kx."""

MIN_SHARE = 0.01  # least size of dual points far from their bounds, relative to the size that balances the misfit
MAX_CONSTANT_GAUGE = 0.9
"""If all entries of a dual point are below this share of their bound, the minimiser is taken to be constant."""


class Composite(Problem):
    r"""F(x) = f(x) + \sum_j g_j(K_j x): a term f, and terms g_j composed with linear operators K_j.

    Let K stack all K_j, let g be the sum of all g_j, and g*(p) = sup_z <z, p> - g(z). The problem and its dual are

        min_x f(x) + g(Kx) = max_p -f*(-K'p) - g*(p).

    The *dual point* p has the shape of Kx. For any x, and any p in the domain of g* with -K'p in the domain of f*,

        gap(x, p) = F(x) + f*(-K'p) + g*(p)  >=  F(x) - min F  >=  0,

    so the gap certifies x, whatever method found x and p. `feasible_dual` turns any array into such a p.

    The parts decide which methods apply: PDHG needs a prox of each term, FGP a strongly convex f, certificates a
    conjugate of each term, learned solvers differences along axes. If there are several terms, the arrays K_j x are
    multiplied by `scales` and stacked into one, `(B, n)`. The scales change only the steps of primal-dual methods.

    Args:
        f: The term of x itself.
        *behind: Pairs (g_j, K_j) of a term and its operator, at least one.
        start: `(B, ...)`, the starting points of runs.
        scales: A positive number for each pair, for the steps of primal-dual methods; None is 1 for each.

    >>> from lmd.operators import Differences
    >>> from lmd.terms import L1, Squares
    >>> y = torch.tensor([[0.0, 0.1, 0.0, 1.0, 1.1]])
    >>> problem = Composite(Squares(y), (L1(0.4), Differences((5,))), start=y)  # 1-D total variation
    >>> import lmd
    >>> lmd.solve(problem, tolerance=1e-5).x.round(decimals=2)
    tensor([[0.1000, 0.1000, 0.1000, 0.9500, 0.9500]])
    """

    batched: tuple[str, ...] = ("points",)
    always_batched = ("points", "reference")

    operator: LinearOperator  # K, which stacks all K_j

    def __init__(self, f: Term, *behind: Pair, start: Tensor, scales: tuple[float, ...] | None = None) -> None:
        check_batch("start", start)
        if not behind:
            raise InputError("behind", "nothing", "at least one pair of a term and the operator it stands behind")
        for argument, term in (("f", f), *(("term", term) for term, _ in behind)):
            if not isinstance(term, Term):
                raise CapabilityError(argument, type(term).__name__, "an lmd.terms.Term")
        self.compose(f, *behind, start=start, scales=scales)
        with torch.no_grad():
            if self.value(start).shape != (len(start),):
                raise InputError("start", f"shape {shape_of(start)}", "points that the terms give one value each for")

    def compose(self, f: Term, *behind: Pair, start: Tensor, scales: tuple[float, ...] | None = None) -> None:
        """Set the parts without checks; for models, which check their own arguments."""
        self.points, self.point_shape, self.f = start, start.shape[1:], f
        self.regularisers, operators = zip(*behind, strict=True)
        self.operator = operators[0]
        if len(operators) > 1 or scales is not None:
            shapes = [operator.select(0)(start[:1]).shape[1:] for operator in operators]
            self.operator = Stack(operators, shapes, scales)

    @property
    def _place(self) -> int:
        """The index j of the operator that takes differences along axes; -1 if there is not exactly one, unscaled."""
        found = [j for j, K in enumerate(self.operator.blocks) if K.grid is not None]
        return found[0] if len(found) == 1 and self.operator.scales[found[0]] == 1 else -1

    @property
    def differences(self) -> Any:
        """The K_j that takes differences of neighbours along axes; None unless there is just one, with scale 1."""
        place = self._place
        return self.operator.blocks[place] if place >= 0 else None

    @property
    def data_smoothness(self) -> Scale:
        """A Lipschitz constant of the gradient of f, used as a unit of step sizes; 1 if there is none or it is 0."""
        constant = self.f.smoothness
        return 1.0 if constant is None or (isinstance(constant, float) and constant == 0) else constant

    @property
    def g(self) -> Term:
        """The term of the array Kx, which holds all K_j x."""
        return self.operator.stacked(self.regularisers)

    @property
    def blocks(self) -> list[Block]:
        """(g_j, K_j, scale) for each j."""
        return list(zip(self.regularisers, self.operator.blocks, self.operator.scales, strict=True))

    @property
    def strong_convexity(self) -> Tensor | None:
        constant, like = self.f.strong_convexity, self.points
        return None if constant is None else torch.as_tensor(constant, dtype=like.dtype, device=like.device)

    @property
    def pieces(self) -> tuple[Pieces | None, tuple[Pieces, ...]] | None:
        """The `Pieces` of f (None if f has a matrix) and of all g_j; None if a term has no pieces."""
        of_f = None if self.f.quadratic is not None else self.f.pieces(self.points)
        behind = [term.pieces(K(self.points)) for term, K, _ in self.blocks]
        known = tuple(each for each in behind if each is not None)
        return None if len(known) < len(behind) or (of_f is None and self.f.quadratic is None) else (of_f, known)

    def start(self) -> Tensor:
        """Return the starting points of runs, `(B, ...)`."""
        return self.points

    def select(self, index: Index) -> Self:
        part = super().select(index)
        vars(part).pop("feasible_block", None)  # to be computed again
        return part

    double = to_double

    def data_vector(self) -> Tensor:
        return flatten_data([*self.f.data(), *self.g.data()], type(self).__name__)

    # Values and gradients.

    def value(self, x: Tensor) -> Tensor:
        return self.f.value(x) + self.g.value(self._image(x))

    def _image(self, x: Tensor) -> Tensor:
        """Return Kx; if g_j is a domain and K_j x is in it up to rounding, K_j x is projected onto it."""
        is_free = not any([isinstance(term, Domain) for term in self.regularisers])
        return self.operator(x) if is_free else duality.onto_domains(self, x, self.operator(x))

    def subgradient(self, x: Tensor) -> Tensor:
        return _add_gradients(self.blocks, x, self.f.subgradient(x).clone())

    def relaxed_value(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return finite values and violations `(B,)`; if g(Kx) is infinite, g is evaluated at prox_g(Kx)."""
        values, violation = super().relaxed_value(x)
        if bool((finite := torch.isfinite(values)).all()):
            return values, violation
        z = self.operator(x)
        away = self.g.conjugate_prox(z, 1.0)  # z - prox_g(z), by Moreau's identity
        values = torch.where(finite, values, self.f.value(x) + self.g.value(z - away))
        return values, torch.where(finite, violation, violation + size_of(away))

    def smoothed_gradient(self, x: Tensor, width: Scale) -> tuple[Tensor, Tensor]:
        """Return the gradient of f(x) + g_w(Kx), and the p that attains g_w(z) = max_p <z, p> - g*(p) - w/2 ||p||^2.

        Moreau envelope: g - w/2 max ||p||^2 <= g_w <= g ([Nesterov 2005](https://doi.org/10.1007/s10107-004-0552-5)).
        """
        p, _ = self._smoothed_dual(self.operator(x), width)
        return self.f.subgradient(x) + self.operator.adjoint(p), p

    def mixed_gradient(self, x: Tensor, widths: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
        z = self.operator(x)
        parts = (self._smoothed_dual(z, width)[0] for width in widths)
        p = functools.reduce(torch.add, map(torch.mul, shares, parts))
        return self.f.subgradient(x) + self.operator.adjoint(p), p

    def smoothed_value(self, x: Tensor, width: Scale) -> Tensor:
        z = self.operator(x)
        p, w = self._smoothed_dual(z, width)
        lifted = sum_instances(z * p) - self.g.conjugate(p) - w / 2 * sum_instances(p.square())
        return self.f.value(x) + lifted

    def _smoothed_dual(self, z: Tensor, width: Scale) -> tuple[Tensor, Scale]:
        """Return argmax_p <z, p> - g*(p) - w/2 ||p||^2, and w, which is `width` over `data_smoothness`."""
        w = width / self.data_smoothness
        return self.g.conjugate_prox(z / per_instance(w, z), 1 / w), w

    # The dual and its gap.

    def feasible_dual(self, p: Tensor) -> Tensor:
        """Return p projected onto the domain of g*, and scaled such that -K'p is in the domain of f*.

        The scaling allows for the rounding of K'p: if e is the error of its entries, gauge(K'p + e) is at most
        gauge(K'p) + gauge(e), and gauge(e) is largest if all entries of e attain their bound with the same sign.
        """
        p = self.g.project(p)
        if self.f.conjugate_is_finite:
            return p
        u, eps = self.operator.adjoint(p), torch.finfo(p.dtype).eps
        if (block := self.feasible_block) is not None:
            return block.project(self, p, u)
        error = self.operator.adjoint_error(p).reshape(-1, *(1,) * (u.ndim - 1)).expand_as(u)
        most = 1 / ((1 + 8 * eps) * self.f.gauge(-u) + self.f.gauge(error)).clamp(min=torch.finfo(p.dtype).tiny)
        factor = self.g.best_multiple(p, most)
        return p * factor.reshape(-1, *(1,) * (p.ndim - 1))

    @cached_property
    def feasible_block(self) -> duality.FeasibleBlock | None:
        """The block that makes dual points feasible if the domain of f* is a cone, where scaling them does not help."""
        return duality.FeasibleBlock.find(self) if self.f.conjugate_is_cone else None

    def dual_error(self, p: Tensor) -> Tensor:
        """Return a bound `(B,)` on the Euclidean distance from p, which is rounded, to a feasible point."""
        return p.new_zeros(len(p)) if self.feasible_block is None else self.feasible_block.error(self, p)

    def dual_value(self, p: Tensor) -> Tensor:
        """Return -f*(-K'p) - g*(p) `(B,)`, a lower bound on the minimum; p is made feasible first."""
        p = self.feasible_dual(p)
        return -self.f.conjugate(-self.operator.adjoint(p)) - self.g.conjugate(p)

    def gap(self, x: Tensor, dual: Tensor) -> Tensor:
        """Return a bound on F(x) - min F `(B,)`, from any dual point, which is made feasible first.

        The bound is the sum of the residuals f(x) + f*(-K'p) + <Kx, p> and g(Kx) + g*(p) - <Kx, p>. It is the same
        number as F(x) - dual_value(dual), but without cancellation if the terms sum nonnegative numbers.
        """
        p = self.feasible_dual(dual)
        residual = self.f.residual(x, self.operator.adjoint(p).neg_())
        return residual + self.g.residual(self._image(x), p)

    def certified_gap(self, x: Tensor, dual: Tensor) -> tuple[Tensor, Tensor]:
        """Return F(x) and a bound on F(x) - min F `(B,)`, both in float64, with room for rounding.

        Both are evaluated in float64 for any dtype of x, so a small gap gives a small bound after float32 runs too.
        Proof: docs/guarantees.md.
        """
        value, gap, room = duality.proven_gap(self, x, dual)
        gap = gap + room
        if duality.zero_is_exact(self):  # no value is below 0
            gap = torch.where(value == 0, 0.0, gap)
        return value, torch.where(torch.isfinite(value), gap, torch.inf)

    def relative_gap(self, x: Tensor, dual: Tensor) -> Tensor:
        """Return a bound on (F(x) - min F) / |min F| for each instance `(B,)`, from the certified gap."""
        return duality.relative_gap(*self.certified_gap(x, dual))

    # The split into f and smooth terms that proximal methods need.

    @property
    def penalty(self) -> Term | None:
        """f if all other terms are smooth; None otherwise."""
        return None if any(term.smoothness is None for term in self.regularisers) else self.f

    def misfit_gradient(self, x: Tensor) -> Tensor:
        """Return the gradient of F without f; all other terms must be smooth."""
        return _add_gradients(self.blocks, x, torch.zeros_like(x))

    # The split into a norm of differences and smooth terms that learned solvers need.

    @property
    def mask(self) -> Tensor | None:
        """1 for known and 0 for unknown entries of x; None if all are known."""
        return self.f.mask

    def fill_unknown(self, x: Tensor) -> Tensor:
        return self.f.fill_unknown(x)

    @property
    def variation(self) -> Term:
        """The term g_j of `differences`."""
        return self.regularisers[self._place]

    @property
    def beside(self) -> list[Block]:
        """All blocks except the block of the differences."""
        return [block for j, block in enumerate(self.blocks) if j != self._place]

    @property
    def gradient_smoothness(self) -> Scale | None:
        """A Lipschitz constant of `data_gradient`; None if one of its terms has none, or all are 0."""
        pairs = [(self.f, 1.0), *((term, K.norm) for term, K, _ in self.beside)]
        known = [term.smoothness * norm**2 for term, norm in pairs if term.smoothness is not None]
        total = sum(known)
        return None if len(known) < len(pairs) or (isinstance(total, float) and total == 0) else total

    def data_gradient(self, x: Tensor) -> Tensor:
        """Return the gradient of F without the term of the differences."""
        return _add_gradients(self.beside, x, self.f.subgradient(x).clone())

    def differences_part(self, dual: Tensor) -> Tensor:
        """Return the part of a dual point that belongs to the differences."""
        return self.operator.split(dual)[self._place]

    def dual_from(self, p: Tensor, x: Tensor) -> Tensor:
        """Return the dual point with p for the differences, and the gradients of the other terms at x."""
        if len(self.regularisers) == 1:
            return p
        parts = [term.subgradient(K(x)) / scale for term, K, scale in self.beside]
        parts.insert(self._place, p)
        return torch.cat([part.flatten(1) for part in parts], dim=1)

    @property
    def beside_spectrum(self) -> Tensor | None:
        """The eigenvalues `(H, W // 2 + 1)` of the Hessian of all blocks except the differences, without f.

        They are known if each block is c ||Kx - y||^2 with a circulant operator K on images; otherwise None.
        """
        if self.differences is None or self.differences.wrapped_spectrum is None:
            return None
        terms = [(term.smoothness, term.strong_convexity, K.spectrum) for term, K, _ in self.beside]
        known = [most * s for most, least, s in terms if isinstance(most, float) and most == least and s is not None]
        return sum(known[1:], start=known[0]) if known and len(known) == len(terms) else None

    def step_scale(self, x: Tensor) -> Tensor:
        """Return the range of x over the size of a dual entry of the differences `(B,)`; NaN if unknown.

        Steps of primal-dual methods are multiples of this ratio. The range is the width of the domain of f, if that is
        bounded, and otherwise the range of x itself. The size of a dual entry is the weight, or less if a smaller
        dual point balances the misfit of a constant point: see `range_ratio`.
        """
        if self.differences is None:
            return x.new_full((len(x),), torch.nan)
        z = self.differences(x)
        low, high = (self.f.nearest(torch.full_like(x[:, :1], end)).flatten(1) for end in (-torch.inf, torch.inf))
        widest = (high - low).mean(dim=1)
        extent = torch.where(torch.isfinite(widest), widest, x.flatten(1).amax(dim=1) - x.flatten(1).amin(dim=1))
        size = filled(self.variation.steepness(z) / z[0].numel() ** 0.5, extent)
        along = tuple(range(2, x.ndim))
        constant = self.f.nearest(x.mean(dim=along, keepdim=True).expand_as(x)) if along else x
        return range_ratio(extent, size, self.data_gradient(constant))

    def levelled(self, x: Tensor, dual: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean of x over each channel, and whether the dual point suggests that it is the minimiser `(B,)`.

        If the optimal dual point is inside its bound, the minimiser has no differences. Differences that are left in x
        cost more for larger weights. The nearest datum replaces the mean if f is lower there.
        """
        if self.differences is None or x.ndim < 3:
            return x, torch.zeros(len(x), dtype=torch.bool, device=x.device)
        within = self.variation.gauge(self.differences_part(dual)) < MAX_CONSTANT_GAUGE
        if not bool(within.any()):
            return x, within
        mean = x.double().mean(dim=tuple(range(2, x.ndim)), keepdim=True).to(x.dtype)
        constant = self.f.nearest(mean.expand_as(x).contiguous())
        datum = _nearest_datum(self.f, constant)
        better = (self.f.value(datum) < self.f.value(constant)).reshape(-1, *[1] * (x.ndim - 1))
        return torch.where(better, datum, constant), within


def _add_gradients(blocks: Sequence[Block], x: Tensor, gradient: Tensor) -> Tensor:
    """Add the gradients of the terms of these blocks to `gradient`, in place."""
    for term, K, _ in blocks:
        gradient = gradient.add_(K.adjoint(term.subgradient(K(x))))
    return gradient


def range_ratio(extent: Tensor, weight: Tensor, u: Tensor) -> Tensor:
    """Return the range of x over the expected size of an entry of the dual points `(B,)`; NaN if unknown.

    An entry is at most the weight, and at most about the `pull`, which balances the gradient u `(B, ...)` of the misfit
    at a constant point: p with K'p = -u is about as large as u times the length of the longest axis. Far below the
    bound, dual points are smaller than the pull by a measured factor.
    """
    flat = u.flatten(1).double()
    pull = (flat - flat.mean(dim=1, keepdim=True)).square().mean(dim=1).sqrt() * max(u.shape[1:])
    pull = pull.nan_to_num(nan=torch.inf).to(u)
    less = pull * (2 * pull / weight).pow(1.5).clamp(MIN_SHARE, 1)
    ratio = extent / torch.where((pull > 0) & (pull < weight), less, weight)
    return torch.where(torch.isfinite(ratio) & (ratio > 0), ratio, torch.nan)


def _nearest_datum(f: Term, constant: Tensor) -> Tensor:
    """Return the datum nearest to the constant in each channel, among entries where f has a nonzero gradient.

    If there is none, return the constant. If all data are equal, the datum equals them exactly, unlike a rounded mean.
    """
    if not f.conjugate_is_finite:
        return constant
    y, pull = f.tilted_minimiser(torch.zeros_like(constant)).flatten(2), f.subgradient(constant).flatten(2)
    far = torch.where(pull != 0, (y - constant.flatten(2)).abs(), torch.inf)
    least, place = far.min(dim=2, keepdim=True)
    datum = torch.where(least.isfinite(), y.gather(2, place), constant.flatten(2)[:, :, :1])
    return f.nearest(datum.expand(-1, -1, y.shape[2]).reshape(constant.shape).contiguous())
