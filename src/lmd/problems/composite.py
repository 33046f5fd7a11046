"""Composite problems: a term f of x itself, and terms g_j behind linear operators K_j."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import Self

from lmd.core.batching import Index, take_instances, to_double
from lmd.core.checks import check_batch, shape_of
from lmd.errors import CapabilityError, InputError
from lmd.operators import LinearOperator
from lmd.operators.stack import Stack
from lmd.problems import duality, grids
from lmd.problems.base import Problem, flatten_data
from lmd.terms import Term
from lmd.terms.base import Pieces, Scale, per_instance, size_of, sum_instances

Block = tuple[Term, LinearOperator, float]
"""A term, the operator it stands behind, and its scale in the array of all of them."""


class Composite(Problem):
    r"""F(x) = f(x) + \sum_j g_j(K_j x): a term f, and terms g_j behind linear operators K_j.

    With K and g those of all j, stacked, and g*(p) = sup_z <z, p> - g(z), the problem and its dual are

        min_x f(x) + g(Kx) = max_p -f*(-K'p) - g*(p).

    The *dual point* p has the shape of Kx. For any x and any p in the domain of g*, with -K'p in that of f*,

        gap(x, p) = F(x) + f*(-K'p) + g*(p)  >=  F(x) - min F  >=  0,

    so the gap certifies x whatever method found x and p. `feasible_dual` makes any array such a p.

    What a composite can do follows from its parts: PDHG needs a prox of each term, FGP a strongly convex f,
    certificates a conjugate of each, learned solvers differences along axes. With several terms their arrays are
    stacked into one, `(B, n)`, in which they are weighed by `scales`: these change the steps of primal-dual methods
    and nothing else. Methods with `out` write their answer there if given; it may be one of their arguments.

    Args:
        f: The term of x itself.
        *behind: Pairs (g_j, K_j) of a term and the operator that it stands behind, at least one.
        start: `(B, ...)`, the points that runs begin at.
        scales: A positive number for each pair, for the steps of primal-dual methods; None is 1 for each.

    >>> from lmd.operators import Differences
    >>> from lmd.terms import L1, Squares
    >>> y = torch.tensor([[0.0, 0.1, 0.0, 1.0, 1.1]])
    >>> problem = Composite(Squares(y), (L1(0.4), Differences((5,))), start=y)  # 1-D total variation
    >>> import lmd
    >>> lmd.solve(problem, tolerance=1e-5).x.round(decimals=2)
    tensor([[0.1000, 0.1000, 0.1000, 0.9500, 0.9500]])
    """

    batched: ClassVar[tuple[str, ...]] = ("points",)

    operator: LinearOperator  # K, which stacks all K_j

    def __init__(
        self,
        f: Term,
        *behind: tuple[Term, LinearOperator],
        start: Tensor,
        scales: tuple[float, ...] | None = None,
    ) -> None:
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

    def compose(
        self,
        f: Term,
        *behind: tuple[Term, LinearOperator],
        start: Tensor,
        scales: tuple[float, ...] | None = None,
    ) -> None:
        """Set the parts without checks, for models, which have checked their arguments."""
        self.points, self.f = start, f
        self.regularisers, operators = zip(*behind, strict=True)
        self.operator = operators[0]
        if len(operators) > 1 or scales is not None:
            shapes = [operator.select(0)(start[:1]).shape[1:] for operator in operators]
            self.operator = Stack(operators, shapes, scales)

    @property
    def _place(self) -> int:
        """The place of the K_j that takes differences along axes; -1 where there is none, or several, or scaled."""
        found = [j for j, K in enumerate(self.operator.blocks) if K.grid is not None]
        return found[0] if len(found) == 1 and self.operator.scales[found[0]] == 1 else -1

    @property
    def differences(self) -> Any:
        """The K_j that takes differences of neighbours along axes, where there is one and its scale is 1."""
        return self.operator.blocks[self._place] if self._place >= 0 else None

    @property
    def data_strong_convexity(self) -> Scale | None:
        """A strong convexity constant of f, where there is one: then the dual is smooth."""
        return self.f.strong_convexity

    @property
    def data_smoothness(self) -> Scale | None:
        """A Lipschitz constant of the gradient of f where f is finite, if there is one; it sets the scale of steps."""
        smoothness = self.f.smoothness
        return None if isinstance(smoothness, float) and smoothness == 0 else smoothness

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
        constant, like = self.data_strong_convexity, self.points
        return None if constant is None else torch.as_tensor(constant, dtype=like.dtype, device=like.device)

    @property
    def quadratic(self) -> tuple[Tensor, Tensor] | None:
        """P `(n, n)` or `(B, n, n)` and q `(B, n)`, where f(x) is x'Px / 2 + q'x."""
        return self.f.quadratic

    @property
    def pieces(self) -> tuple[Pieces | None, tuple[Pieces, ...]] | None:
        """The `Pieces` of f, None where it has a matrix, and of all g_j; None where a term has none."""
        of_f = None if self.quadratic is not None else self.f.pieces(self.points)
        behind = [term.pieces(K(self.points)) for term, K, _ in self.blocks]
        known = tuple(each for each in behind if each is not None)
        return None if len(known) < len(behind) or (of_f is None and self.quadratic is None) else (of_f, known)

    def start(self) -> Tensor:
        """Return the points `(B, ...)` that runs begin at."""
        return self.points

    def check_start(self, x0: Tensor) -> Tensor:
        super().check_start(x0)
        if x0.shape[1:] != self.points.shape[1:]:
            raise InputError("x0", f"shape {shape_of(x0)}", f"shape {shape_of(self.points)}, as the start has")
        return x0

    def select(self, index: Index) -> Self:
        part = copy.copy(self)
        vars(part).pop("feasible_block", None)  # to be computed again
        for name in {*self.batched, "points", "reference"}:
            if isinstance(value := vars(self).get(name), Tensor):
                setattr(part, name, take_instances(value, index))
        part.operator = self.operator.select(index)
        part.f, part.regularisers = self.f.select(index), tuple(term.select(index) for term in self.regularisers)
        return part

    def double(self) -> Self:
        return to_double(self)

    def data_vector(self) -> Tensor:
        return flatten_data([*self.f.data(), *self.g.data()], type(self).__name__)

    # Values and gradients.

    def value(self, x: Tensor) -> Tensor:
        value = self.data_value(x)
        for term, K, _ in self.blocks:
            z = K(x)
            value = value + term.value(duality.onto_domain(term, K, x, z) if duality.is_limit(term, K) else z)
        return value

    def subgradient(self, x: Tensor) -> Tensor:
        return _add_gradients(self.blocks, x, self.f.subgradient(x).clone())

    def relaxed_value(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Finite values and violations `(B,)`; where g(Kx) is infinite, g is evaluated at prox_g(Kx)."""
        values, violation = super().relaxed_value(x)
        if bool((finite := torch.isfinite(values)).all()):
            return values, violation
        z = self.operator(x)
        away = self.dual_prox(z, 1.0)  # z - prox_g(z), by Moreau's identity
        values = torch.where(finite, values, self.data_value(x) + self.g.value(z - away))
        return values, torch.where(finite, violation, violation + size_of(away))

    def smoothed_gradient(self, x: Tensor, width: Scale) -> tuple[Tensor, Tensor]:
        """The gradient of f(x) + g_w(Kx), g_w(z) = max_p <z, p> - g*(p) - w/2 ||p||^2 (Moreau's envelope), and p.

        g - w/2 max ||p||^2 <= g_w <= g ([Nesterov 2005](https://doi.org/10.1007/s10107-004-0552-5)).
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
        return self.data_value(x) + lifted

    def _smoothed_dual(self, z: Tensor, width: Scale) -> tuple[Tensor, Scale]:
        """argmax_p <z, p> - g*(p) - w/2 ||p||^2, and w: the width in units of 1 / `data_smoothness`."""
        w = width / (1.0 if self.data_smoothness is None else self.data_smoothness)
        return self.dual_prox(z / per_instance(w, z), 1 / w), w

    # f and g, as primal-dual methods ask for them; more in `f` and `g`.

    def data_value(self, x: Tensor) -> Tensor:
        """f(x) `(B,)`."""
        return self.f.value(x)

    def data_prox(self, x: Tensor, step: Scale, out: Tensor | None = None) -> Tensor:
        """argmin_v f(v) + ||v - x||^2 / (2 step), same shape as x."""
        return self.f.prox(x, step, out=out)

    def tilted_minimiser(self, u: Tensor, out: Tensor | None = None) -> Tensor:
        """argmin_x f(x) + <u, x>, which is the gradient of f* at -u; same shape as u."""
        return self.f.tilted_minimiser(u, out=out)

    def regulariser_prox(self, z: Tensor, step: Scale) -> Tensor:
        """argmin_v g(v) + ||v - z||^2 / (2 step), same shape as z."""
        return self.g.prox(z, step)

    def dual_prox(self, p: Tensor, step: Scale, out: Tensor | None = None) -> Tensor:
        """argmin_q g*(q) + ||q - p||^2 / (2 step), same shape as p."""
        return self.g.conjugate_prox(p, step, out=out)

    def project_dual(self, p: Tensor, out: Tensor | None = None) -> Tensor:
        """The nearest point of the domain of g*, same shape as p."""
        return self.g.project(p, out=out)

    # The dual and its gap.

    def feasible_dual(self, p: Tensor) -> Tensor:
        """The nearest point of the domain of g*, times what it takes for -K'p to be in the domain of f*.

        By a little more than that, as K'p is computed: e the error of each of its entries, gauge(K'p + e) is at most
        gauge(K'p) + gauge(e), and gauges of norms are largest at equal signs.
        """
        p = self.project_dual(p)
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
        """The block that makes dual points feasible where the domain of f* is a cone, which no multiple reaches."""
        return duality.FeasibleBlock.find(self) if self.f.conjugate_is_cone else None

    def dual_error(self, p: Tensor) -> Tensor:
        """A bound on the distance of a feasible point to p, a computed one, in the Euclidean norm `(B,)`."""
        return p.new_zeros(len(p)) if self.feasible_block is None else self.feasible_block.error(self, p)

    def dual_value(self, p: Tensor) -> Tensor:
        """-f*(-K'p) - g*(p) `(B,)`, a lower bound on the minimum; p is made feasible first."""
        p = self.feasible_dual(p)
        return -self.f.conjugate(-self.operator.adjoint(p)) - self.g.conjugate(p)

    def gap(self, x: Tensor, dual: Tensor) -> Tensor:
        """A bound on F(x) - min F for each instance `(B,)`, from any dual point, which is made feasible first.

        The sum of the residuals f(x) + f*(-K'p) + <Kx, p> and g(Kx) + g*(p) - <Kx, p>: the same number as
        F(x) - dual_value(dual), without the cancellation, where terms add them up from what is never negative.
        """
        p = self.feasible_dual(dual)
        residual = self.f.residual(x, self.operator.adjoint(p).neg_())
        return residual + self.g.residual(duality.image(self, x), p)

    def certified_gap(self, x: Tensor, dual: Tensor) -> tuple[Tensor, Tensor]:
        """F(x) and a bound on F(x) - min F `(B,)`, both in float64, with room for the rounding of their evaluation.

        Evaluated in float64 whatever the dtype of x: the bound is small where the gap is, however the run was rounded.
        Proof: docs/guarantees.md.
        """
        value, gap, room = duality.proven_gap(self, x, dual)
        gap = gap + room
        if duality.zero_is_exact(self):  # no value is below 0
            gap = torch.where(value == 0, 0.0, gap)
        return value, torch.where(torch.isfinite(value), gap, torch.inf)

    def relative_gap(self, x: Tensor, dual: Tensor) -> Tensor:
        """A bound on (F(x) - min F) / |min F| for each instance `(B,)`, from the certified gap."""
        return duality.relative_gap(*self.certified_gap(x, dual))

    # f apart from smooth terms, as proximal methods ask for it.

    @property
    def penalty(self) -> Term | None:
        """f, where all other terms are smooth."""
        return None if any(term.smoothness is None for term in self.regularisers) else self.f

    def misfit_gradient(self, x: Tensor) -> Tensor:
        """The gradient of everything but f, where the rest is smooth."""
        return _add_gradients(self.blocks, x, torch.zeros_like(x))

    # Differences on a grid beside smooth terms, as learned solvers ask for them; more in `lmd.problems.grids`.

    @property
    def mask(self) -> Tensor | None:
        """1 for known entries of x and 0 for unknown ones, if there are any."""
        return self.f.mask

    def clip(self, x: Tensor) -> Tensor:
        """The nearest point of the domain of f, in which the minimisers lie; x itself where there is none."""
        return self.f.nearest(x)

    def fill_unknown(self, x: Tensor) -> Tensor:
        return self.f.fill_unknown(x)

    @property
    def variation(self) -> Term:
        """The term behind `differences`."""
        return self.regularisers[self._place]

    @property
    def beside(self) -> list[Block]:
        """All blocks but that of the differences."""
        return [block for j, block in enumerate(self.blocks) if j != self._place]

    @property
    def gradient_smoothness(self) -> Scale | None:
        """A Lipschitz constant of `data_gradient`; None where one of its terms has none, or all are 0."""
        return grids.gradient_smoothness(self)

    def data_gradient(self, x: Tensor) -> Tensor:
        """The gradient of everything but the term behind the differences."""
        return _add_gradients(self.beside, x, self.f.subgradient(x).clone())

    def differences_part(self, dual: Tensor) -> Tensor:
        """The part of a dual point that belongs to the differences."""
        return self.operator.split(dual)[self._place]

    def dual_from(self, p: Tensor, x: Tensor) -> Tensor:
        """The dual point of which p belongs to the differences, and the rest is the one that belongs to x."""
        if len(self.regularisers) == 1:
            return p
        parts = [term.subgradient(K(x)) / scale for term, K, scale in self.beside]
        parts.insert(self._place, p)
        return torch.cat([part.flatten(1) for part in parts], dim=1)

    @property
    def beside_spectrum(self) -> Tensor | None:
        """A circulant bound on the Hessian of the terms beside the differences; see `grids.beside_spectrum`."""
        return grids.beside_spectrum(self)

    def step_scale(self, x: Tensor) -> Tensor:
        """The range of x over the size of dual points `(B,)`, a unit of steps; see `grids.step_scale`."""
        return grids.step_scale(self, x)

    def levelled(self, x: Tensor, dual: Tensor) -> tuple[Tensor, Tensor]:
        """Points without variation, and where the dual point says that these suffice; see `grids.level`."""
        return grids.level(self, x, dual)


def _add_gradients(blocks: Sequence[Block], x: Tensor, gradient: Tensor) -> Tensor:
    """Add the gradients of the terms of these blocks to a gradient that may be written to."""
    for term, K, _ in blocks:
        gradient = gradient.add_(K.adjoint(term.subgradient(K(x))))
    return gradient
