"""Problems put together from parts: a term f of x itself, and terms g_j behind linear operators K_j."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import Self

from lmd.core.batching import Index, Part, chosen, doubled
from lmd.core.checks import check_batch, shape_of
from lmd.errors import CapabilityError, InputError
from lmd.operators import LinearOperator, Stack
from lmd.problems.base import joined
from lmd.problems.composite import CompositeProblem
from lmd.terms import Domain, Term
from lmd.terms.base import Pieces, Scale, filled, size_of
from lmd.terms.quadratic import times

Block = tuple[Term, LinearOperator, float]
"""A term, the operator it stands behind, and its scale in the array of all of them."""

MAX_ABSORBED = 1024
"""Entries of x up to which the matrix K'K of an operator is inverted for dual points."""

ROUNDINGS = 4 * torch.finfo(torch.float32).eps
"""Constraints of Kx are met to so much of what the entries of Kx are sums of: no nearer in float32, in which x is."""


class Absorber(Part):
    """A block g_j(K_j x) whose dual points may be anything, with a K_j that has an inverse from the left.

    Where -K'p is outside the domain of f* by d, p_j moves by K_j (K_j'K_j)^{-1} d; the feasible point that is meant is
    as far from the computed one as what is left of d, over the smallest singular value of K_j.
    """

    def __init__(self, place: int, inverse: Tensor | None, least: Tensor) -> None:
        self.place, self.inverse, self.least = place, inverse, least

    @classmethod
    def of(cls, problem: Composite) -> Absorber | None:
        """The first block of a problem that is one; None where there is none."""
        x = problem.points
        for place, (term, K, scale) in enumerate(problem._blocks):
            if not term.conjugate_is_finite:
                continue
            if K.is_identity:
                return cls(place, None, torch.tensor(scale, dtype=torch.float64, device=x.device))
            if x[0].numel() <= MAX_ABSORBED:
                gram = K.gram(x).double()
                spectrum = torch.linalg.eigvalsh(gram)
                if bool((spectrum[..., 0] > 1e-12 * spectrum[..., -1]).all()):
                    least = (spectrum[..., 0] - 1e-13 * spectrum[..., -1]).sqrt()
                    return cls(place, torch.linalg.inv(gram), scale * least)
        return None

    def moved(self, problem: Composite, p: Tensor, u: Tensor) -> Tensor:
        """A feasible dual point, up to rounding, from one p for which u = K'p."""
        for _ in range(2):  # the second time for the rounding of the first
            off = (u + problem.f.project(-u)).flatten(1)
            K, scale = problem.operator.blocks[self.place], problem.operator.scales[self.place]
            back = off if self.inverse is None else times(off, self.inverse.to(off))
            move = K(back.reshape_as(u)) / scale
            parts = [part.clone() for part in problem.operator.split(p)]
            parts[self.place] = parts[self.place] - move
            p = parts[0] if len(parts) == 1 else torch.cat([part.flatten(1) for part in parts], dim=1)
            u = problem.operator.adjoint(p)
        return p

    def error(self, problem: Composite, p: Tensor) -> Tensor:
        """How far the feasible point can be from p `(B,)`."""
        u = problem.operator.adjoint(p)
        off = size_of(u + problem.f.project(-u)) + problem.operator.adjoint_error(p)
        return 2 * off / self.least.to(off)


LEAST_SHARE = 0.01
"""Of what would balance the misfit, the size of dual points that are far from their bounds."""

WELL_WITHIN = 0.9
"""The share of its bound that no entry of a dual point is above where the minimiser has no differences for sure."""


class Composite(CompositeProblem):
    r"""F(x) = f(x) + \sum_j g_j(K_j x): a term f, and terms g_j behind operators K_j.

    What it can do follows from the parts: PDHG needs a prox of each term, FGP a strongly convex f, certificates a
    conjugate of each, learned solvers differences along axes; `lmd.solve` and every solver that asks for these runs on
    it. `start` `(B, ...)` are the points that runs begin at, and say what shape x has. With several terms their arrays
    are stacked into one, `(B, n)`, in which they are weighed by `scales` (1 each by default): numbers that change the
    steps of primal-dual methods and nothing else.

    *The dual.* Any p gives a bound once it is in the domains of all g_j*, and -K'p in that of f*. The first is a
    projection. Where f* is not finite everywhere, as for a norm, p is multiplied by the number for which the second
    holds and the bound is best.

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

    differences: LinearOperator | None
    """The K_j that takes differences of neighbours along axes, where there is one and its scale is 1."""

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
        """Take the parts as they are: for models, which have checked what they are made of."""
        self.points, self.f, self.regularisers = start, f, tuple(term for term, _ in behind)
        operators = [operator for _, operator in behind]
        self.operator = operators[0]
        if len(operators) > 1 or scales is not None:
            shapes = [operator.select(0)(start[:1]).shape[1:] for operator in operators]
            self.operator = Stack(operators, shapes, scales)
        self._parts = (f.name, *(part.name for pair in behind for part in pair))
        grids = [j for j, operator in enumerate(operators) if operator.grid is not None]
        self._grid = grids[0] if len(grids) == 1 and self.operator.scales[grids[0]] == 1 else -1
        self.differences = operators[self._grid] if self._grid >= 0 else None
        self._take_constants()

    def _take_constants(self) -> None:
        self.data_strong_convexity, smoothness = self.f.strong_convexity, self.f.smoothness
        self.data_smoothness = None if isinstance(smoothness, float) and smoothness == 0 else smoothness

    @property
    def g(self) -> Term:
        """The term of the array Kx, which holds all K_j x."""
        return self.operator.stacked(self.regularisers)

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of f, g_1, K_1, g_2, ..."""
        return self._parts

    @property
    def strong_convexity(self) -> Tensor | None:
        constant, like = self.data_strong_convexity, self.points
        return None if constant is None else torch.as_tensor(constant, dtype=like.dtype, device=like.device)

    def start(self) -> Tensor:
        return self.points

    def check_start(self, x0: Tensor) -> Tensor:
        super().check_start(x0)
        if x0.shape[1:] != self.points.shape[1:]:
            raise InputError("x0", f"shape {shape_of(x0)}", f"shape {shape_of(self.points)}, as the start has")
        return x0

    def select(self, index: Index) -> Self:
        part = copy.copy(self)
        vars(part).pop("_found", None)
        for name in {*self.batched, "points", "reference"}:
            if isinstance(value := vars(self).get(name), Tensor):
                setattr(part, name, chosen(value, index))
        part.operator = self.operator.select(index)
        part.f, part.regularisers = self.f.select(index), tuple(term.select(index) for term in self.regularisers)
        part._take_constants()
        return part

    def double(self) -> Self:
        return doubled(self)

    def value(self, x: Tensor) -> Tensor:
        value = self.data_value(x)
        for term, K, _ in self._blocks:
            value = value + (
                term.value(_onto_domain(term, K, x, K(x))) if _limits(term, K) else K.value_behind(term, x)
            )
        return value

    def data_vector(self) -> Tensor:
        return joined([*self.f.data(), *self.g.data()], type(self).__name__)

    @property
    def quadratic(self) -> tuple[Tensor, Tensor] | None:
        return self.f.quadratic

    @property
    def pieces(self) -> tuple[Pieces | None, tuple[Pieces, ...]] | None:
        """Those of f, None where it has a matrix, and of all g_j; None where a term has none."""
        of_f = None if self.quadratic is not None else self.f.pieces(self.points)
        behind = [term.pieces(K(self.points)) for term, K, _ in self._blocks]
        known = tuple(each for each in behind if each is not None)
        return None if len(known) < len(behind) or (of_f is None and self.quadratic is None) else (of_f, known)

    def regulariser_prox(self, z: Tensor, step: Scale) -> Tensor:
        return self.g.prox(z, step)

    def subgradient(self, x: Tensor) -> Tensor:
        return self._add_gradients(self._blocks, x, self.f.own_subgradient(x))

    @staticmethod
    def _add_gradients(blocks: list[Block], x: Tensor, gradient: Tensor) -> Tensor:
        """Those of the terms of these blocks, added to a gradient that may be written to."""
        for term, K, _ in blocks:
            gradient = K.add_subgradient(term, x, gradient)
        return gradient

    @property
    def _blocks(self) -> list[Block]:
        return list(zip(self.regularisers, self.operator.blocks, self.operator.scales, strict=True))

    def data_value(self, x: Tensor) -> Tensor:
        return self.f.value(x)

    def f_gradient(self, x: Tensor) -> Tensor:
        return self.f.subgradient(x)

    def data_prox(self, x: Tensor, step: Scale, out: Tensor | None = None) -> Tensor:
        return self.f.prox(x, step, out=out)

    def tilted_minimiser(self, u: Tensor, out: Tensor | None = None) -> Tensor:
        return self.f.tilted_minimiser(u, out=out)

    def tilted_minimum(self, u: Tensor) -> Tensor:
        return self.f.tilted_minimum(u)

    def regulariser_value(self, z: Tensor) -> Tensor:
        return self.g.value(z)

    def regulariser_conjugate(self, p: Tensor) -> Tensor:
        return self.g.conjugate(p)

    def dual_prox(self, p: Tensor, step: Scale, out: Tensor | None = None) -> Tensor:
        return self.g.conjugate_prox(p, step, out=out)

    def project_dual(self, p: Tensor, out: Tensor | None = None) -> Tensor:
        return self.g.project(p, out=out)

    def data_residual(self, x: Tensor, u: Tensor) -> Tensor:
        return self.f.residual(x, -u)

    def regulariser_residual(self, z: Tensor, p: Tensor) -> Tensor:
        return self.g.residual(z, p)

    def feasible_dual(self, p: Tensor) -> Tensor:
        """The nearest point of the domain of g*, times what it takes for -K'p to be in the domain of f*.

        By a little more than that, as K'p is computed: e the error of each of its entries, gauge(K'p + e) is at most
        gauge(K'p) + gauge(e), and gauges of norms are largest at equal signs.
        """
        p = self.project_dual(p)
        if self.f.conjugate_is_finite:
            return p
        u, eps = self.operator.adjoint(p), torch.finfo(p.dtype).eps
        error = self.operator.adjoint_error(p).reshape(-1, *(1,) * (u.ndim - 1)).expand_as(u)
        if (absorber := self._absorber) is not None:
            return absorber.moved(self, p, u)
        most = 1 / ((1 + 8 * eps) * self.f.gauge(-u) + self.f.gauge(error)).clamp(min=torch.finfo(p.dtype).tiny)
        factor = self.g.best_multiple(p, most)
        return p * factor.reshape(-1, *(1,) * (p.ndim - 1))

    def dual_error(self, p: Tensor) -> Tensor:
        """How far a feasible point can be from p, a computed one, in the Euclidean norm `(B,)`."""
        return p.new_zeros(len(p)) if self._absorber is None else self._absorber.error(self, p)

    @property
    def _absorber(self) -> Absorber | None:
        """What makes dual points feasible where the domain of f* is a cone, of which no multiple is."""
        if not self.f.conjugate_is_cone:
            return None
        if "_found" not in vars(self):
            self._found = Absorber.of(self)
        return self._found

    def dual_value(self, p: Tensor) -> Tensor:
        p = self.feasible_dual(p)
        return self.tilted_minimum(self.operator.adjoint(p)) - self.regulariser_conjugate(p)

    def gap(self, x: Tensor, dual: Tensor) -> Tensor:
        p = self.feasible_dual(dual)
        residual = self.f.residual(x, self.operator.adjoint(p).neg_())
        return residual + self.g.residual(self._image(x), p)

    def gap_rounding(self, x: Tensor, p: Tensor, value: Tensor, gap: Tensor) -> Tensor:
        """That of both residuals, from the errors of Kx and K'p, and that of g(Kx)."""
        return self._evaluate(x, self.feasible_dual(p))[2]

    def _evaluate(self, x: Tensor, p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The value, the gap and its rounding, for p in the domains; Kx and K'p are computed once.

        g is convex: as computed of Kx, it is above the true one by at most the length of a subgradient times the error.
        Where Kx is moved onto a domain, f(x) is above the minimum by <p, move> more at most, and may be below it.
        """
        K, f, g, none = self.operator, self.f, self.g, x.new_zeros(len(x))
        z, u, off = self._image(x), K.adjoint(p).neg_(), self.dual_error(p)
        u = u if self._absorber is None else f.project(u)
        first, second, error = f.residual(x, u), g.residual(z, p), K.error(x, z)
        moved = size_of(z - K(x)) * size_of(p) if self._is_limited else none
        back = K.adjoint_error(p) + K.norm * off
        rounding = f.rounding(x, u, none, back, first) + g.rounding(z, p, error, off, second)
        return (
            self.data_value(x) + g.value(z),
            first + second,
            rounding + g.steepness(z) * error + moved + f.value_rounding(x),
        )

    @property
    def _is_limited(self) -> bool:
        """Whether there is a domain behind an operator."""
        return any(_limits(term, K) for term, K, _ in self._blocks)

    def _image(self, x: Tensor) -> Tensor:
        """Kx, on the domains behind operators where these are met to rounding."""
        z = self.operator(x)
        if not self._is_limited:
            return z
        pieces = zip(self._blocks, self.operator.split(z), strict=True)
        parts = [
            scale * _onto_domain(term, K, x, part / scale) if _limits(term, K) else part
            for (term, K, scale), part in pieces
        ]
        return parts[0] if len(parts) == 1 else torch.cat([part.flatten(1) for part in parts], dim=1)

    def projected(self, x: Tensor) -> Tensor:
        """x on the domain of f and on those that stand behind identities, one after the other."""
        sets = [term for term, K, _ in self._blocks if K.is_identity]
        for term in (*sets, *sets, self.f):
            x = term.nearest(x)
        return x

    def proven_gap(self, x: Tensor, dual: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        _ = self._absorber  # found once, and copied to float64 with the rest
        x, exact, eps = x.double(), self.double(), torch.finfo(torch.float64).eps
        value, gap, rounding = exact._evaluate(x, exact.feasible_dual(dual.double()))
        return value, gap, rounding + self.rounding_of_sums(x, dual, eps, value, gap)

    def certified_gap(self, x: Tensor, dual: Tensor) -> tuple[Tensor, Tensor]:
        value, gap = super().certified_gap(x, dual)
        if self._zero_is_exact:  # no value is below 0
            gap = torch.where(value == 0, 0.0, gap)
        return value, torch.where(torch.isfinite(value), gap, torch.inf)

    @property
    def _zero_is_exact(self) -> bool:
        """Whether values of 0 are without rounding, and minima: x is all there is, and its differences."""
        terms = (self.f, *self.regularisers)
        return self._grid == 0 and len(terms) == 2 and all(term.zero_is_exact for term in terms)

    @property
    def penalty(self) -> Term | None:
        """f, where the rest is smooth: what proximal methods handle apart."""
        return None if any(term.smoothness is None for term in self.regularisers) else self.f

    def misfit_gradient(self, x: Tensor) -> Tensor:
        """The gradient of everything but f, where the rest is smooth."""
        return self._add_gradients(self._blocks, x, torch.zeros_like(x))

    # What learned solvers ask for: differences on a grid, beside terms that are smooth.

    @property
    def mask(self) -> Tensor | None:
        """1 where something is known of an entry of x, 0 where not, where there are such."""
        return self.f.mask

    def clip(self, x: Tensor) -> Tensor:
        """The nearest point of the domain of f, in which the minimisers lie; x itself where there is none."""
        return self.f.nearest(x)

    def filled(self, x: Tensor) -> Tensor:
        """x with a guess in place of entries that nothing is known of; x itself where there are none."""
        return self.f.guess(x)

    @property
    def gradient_smoothness(self) -> Scale | None:
        """A Lipschitz constant of `data_gradient`; None where one of its terms has none, or all are 0."""
        pairs = [(self.f, 1.0), *((term, K.norm) for term, K, _ in self._beside)]
        constants = [None if term.smoothness is None else term.smoothness * norm**2 for term, norm in pairs]
        known = [constant for constant in constants if constant is not None]
        total = sum(known)
        if len(known) < len(constants) or (isinstance(total, (int, float)) and total == 0):
            return None
        return total

    def data_gradient(self, x: Tensor) -> Tensor:
        """The gradient of everything but what stands behind the differences."""
        return self._add_gradients(self._beside, x, self.f.own_subgradient(x))

    def step_scale(self, x: Tensor) -> Tensor:
        """The range of x over the size of an entry of the dual points of the differences `(B,)`; NaN where unknown.

        What a step of a primal-dual method is a multiple of. The range is that of the domain of f, where it has ends.
        The size of an entry is that of the weight, unless it takes less to balance the misfit of a flat point: see
        `dual_size`.
        """
        if self._grid < 0:
            return x.new_full((len(x),), torch.nan)
        z = self.operator.blocks[self._grid](x)
        low, high = (self.clip(torch.full_like(x[:, :1], end)).flatten(1) for end in (-torch.inf, torch.inf))
        widest = (high - low).mean(dim=1)
        extent = torch.where(torch.isfinite(widest), widest, x.flatten(1).amax(dim=1) - x.flatten(1).amin(dim=1))
        size = filled(self.regularisers[self._grid].steepness(z) / z[0].numel() ** 0.5, extent)
        scale = torch.where(extent > 0, extent, torch.nan) / dual_size(size, self._pull(x))
        return torch.where(torch.isfinite(scale) & (scale > 0), scale, torch.nan)

    def _pull(self, x: Tensor) -> Tensor:
        """About how large dual points of the differences are where the minimiser is flat `(B,)`.

        Those that balance the gradient u of all other terms, K'p = -u, are about as large as u times the length of the
        longest axis.
        """
        along = tuple(range(2, x.ndim))
        flat = self.clip(x.mean(dim=along, keepdim=True).expand_as(x)) if along else x
        return pull_of(self.data_gradient(flat), x.shape[1:]).to(x)

    def levelled(self, x: Tensor, dual: Tensor) -> tuple[Tensor, Tensor]:
        """The mean of x over each channel, and for which instances `(B,)` the dual point says that no more is needed.

        Where all of it is well within the bound that the weight sets, the minimiser has no differences. Those that x
        still has cost the more, the larger the weight. The nearest datum stands in for a mean where that is better.
        """
        if self._grid < 0 or x.ndim < 3:
            return x, torch.zeros(len(x), dtype=torch.bool, device=x.device)
        within = self.regularisers[self._grid].gauge(self.differences_part(dual)) < WELL_WITHIN
        if not bool(within.any()):
            return x, within
        mean = x.double().mean(dim=tuple(range(2, x.ndim)), keepdim=True).to(x.dtype)
        level = self.clip(mean.expand_as(x).contiguous())
        datum = self._nearest_datum(level)
        better = (self.f.value(datum) < self.f.value(level)).reshape(-1, *[1] * (x.ndim - 1))
        return torch.where(better, datum, level), within

    def _nearest_datum(self, level: Tensor) -> Tensor:
        """In each channel, the datum of f nearest to a level that pulls at it; the level where there is none.

        Data that are all the same are met exactly, which means do not do: then the minimum is 0, and that is proven.
        """
        if not self.f.conjugate_is_finite:
            return level
        y, pull = self.f.tilted_minimiser(torch.zeros_like(level)).flatten(2), self.f.own_subgradient(level).flatten(2)
        far = torch.where(pull != 0, (y - level.flatten(2)).abs(), torch.inf)
        least, place = far.min(dim=2, keepdim=True)
        datum = torch.where(least.isfinite(), y.gather(2, place), level.flatten(2)[:, :, :1])
        return self.clip(datum.expand(-1, -1, y.shape[2]).reshape(level.shape).contiguous())

    def project_differences(self, p: Tensor, out: Tensor | None = None) -> Tensor:
        """The nearest feasible p of the differences: all of the dual point, or a part of it where there is more."""
        return self.regularisers[self._grid].project(p, out=out)

    def kinks(self, x: Tensor, dual: Tensor, step: Scale) -> tuple[Tensor | None, Tensor | None]:
        """Where differences stay 0 and where x stays at an end of its domain, while all else changes a little.

        See `Term.kinks`; raises where another term has kinks, or none that are known.
        """
        p, term = self.operator.split(dual)[self._grid], self.regularisers[self._grid]
        z = self.operator.blocks[self._grid](x)
        kinks = term.kinks(z, p, step)
        u = self.operator.adjoint(dual).neg_()
        return None if kinks is None else kinks.expand_as(z), self.f.kinks(x, u, step)

    def differences_prox(self, p: Tensor, step: Scale) -> Tensor:
        """argmin_q g*(q) + ||q - p||^2 / (2 step), g the term behind the differences."""
        return self.regularisers[self._grid].conjugate_prox(p, step)

    def differences_part(self, dual: Tensor) -> Tensor:
        """The part of a dual point that belongs to the differences."""
        return self.operator.split(dual)[self._grid]

    @property
    def beside_spectrum(self) -> Tensor | None:
        """The eigenvalues `(H, W // 2 + 1)` of a circulant matrix that is at least the Hessian of what stands beside
        the differences, f left out: of h(z) = c ||z - y||^2 behind operators with a `wrapped_spectrum`; None elsewhere,
        and where the differences have none.
        """
        if self.differences is None or self.differences.wrapped_spectrum is None:
            return None
        terms = [(term.smoothness, term.strong_convexity, K.wrapped_spectrum) for term, K, _ in self._beside]
        known = [most * s for most, least, s in terms if isinstance(most, float) and most == least and s is not None]
        return sum(known[1:], start=known[0]) if known and len(known) == len(terms) else None

    @property
    def beside_is_circulant(self) -> bool:
        """Whether that is the Hessian itself."""
        return all(K.spectrum is not None for _, K, _ in self._beside)

    @property
    def beside_hessian(self) -> Tensor | None:
        """`beside_spectrum`, where it is the Hessian itself; otherwise None."""
        return self.beside_spectrum if self.beside_is_circulant else None

    def dual_from(self, p: Tensor, x: Tensor) -> Tensor:
        """The dual point of which p belongs to the differences, and the rest is the one that belongs to x."""
        if len(self.regularisers) == 1:
            return p
        parts = [term.subgradient(K(x)) / scale for term, K, scale in self._beside]
        parts.insert(self._grid, p)
        return torch.cat([part.flatten(1) for part in parts], dim=1)

    @property
    def _beside(self) -> list[Block]:
        """All but that of the differences."""
        return [block for j, block in enumerate(self._blocks) if j != self._grid]


def dual_size(weight: Tensor, pull: Tensor) -> Tensor:
    """About how large an entry of a dual point becomes `(B,)`, from its bound and the pull of the misfit.

    It is bounded by the weight. However large that is, dual points do not grow past what balances the misfit of a flat
    point. Far below the bound they are smaller than this `pull`, which is rather too large; by how much is measured.
    """
    less = pull * (2 * pull / weight).pow(1.5).clamp(LEAST_SHARE, 1)
    return torch.where((pull > 0) & (pull < weight), less, weight)


def pull_of(u: Tensor, shape: Sequence[int]) -> Tensor:
    """About how large p with K'p = -u are for differences K of arrays of this shape `(B,)`; infinite where unknown."""
    flat = u.flatten(1).double()
    size = (flat - flat.mean(dim=1, keepdim=True)).square().mean(dim=1).sqrt() * max(shape)
    return size.nan_to_num(nan=torch.inf)


def _limits(term: Term, K: LinearOperator) -> bool:
    """Whether a term is a domain of what an operator computes, which is met to rounding at best."""
    return isinstance(term, Domain) and not K.is_identity


def _onto_domain(term: Term, K: LinearOperator, x: Tensor, z: Tensor) -> Tensor:
    """z = Kx, or the nearest point of the domain of a term, where all of its entries are that near to rounding."""
    nearest = term.nearest(z)
    room = ROUNDINGS * filled(K.magnitude(x), z)
    met = ((z - nearest).abs() <= room).flatten(1).all(dim=1)
    return torch.where(met.reshape(-1, *(1,) * (z.ndim - 1)), nearest, z)
