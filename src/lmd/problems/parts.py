"""Problems put together from parts: a term f of x itself, and terms g_j behind linear operators K_j."""

from __future__ import annotations

import torch
from torch import Tensor

from lmd.checks import check_batch, shape_of
from lmd.copies import Index, doubled
from lmd.errors import CapabilityError, InputError
from lmd.operators import LinearOperator, Stack
from lmd.problems.composite import CompositeProblem, Scale
from lmd.terms import Stacked, Term


class Composite(CompositeProblem):
    r"""F(x) = f(x) + \sum_j g_j(K_j x): a term f, and terms g_j behind operators K_j.

    What it can do follows from the parts: PDHG needs a prox of each term, FGP a strongly convex f, certificates a
    conjugate of each; `lmd.solve` and every solver that asks for these runs on it. `start` `(B, ...)` are the points
    that runs begin at, and say what shape x has. With several terms their arrays are stacked into one, `(B, n)`, in
    which they are weighed by `scales` (1 each by default): numbers that change the steps of primal-dual methods and
    nothing else.

    *The dual.* Any p gives a bound once it is in the domains of all g_j*, and -K'p in that of f*. The first is a
    projection. Where f* is not finite everywhere, as for a norm, p is multiplied by the number for which the second
    holds and the bound is best.

    >>> from lmd.operators import Differences
    >>> from lmd.terms import L1, Squares
    >>> y = torch.tensor([[0.0, 0.1, 0.0, 1.0, 1.1]])
    >>> problem = Composite(Squares(y), (L1(0.4), Differences((5,))), start=y)  # 1-D total variation
    >>> import lmd
    >>> lmd.solve(problem, tolerance=1e-5).x.round(decimals=2)
    tensor([[0.1000, 0.1000, 0.1000, 0.9500, 0.9500]])
    """

    batched = ("points",)

    def __init__(
        self,
        f: Term,
        *behind: tuple[Term, LinearOperator],
        start: Tensor,
        scales: tuple[float, ...] | None = None,
    ) -> None:
        self.points = check_batch("start", start)
        if not behind:
            raise InputError("behind", "nothing", "at least one pair of a term and the operator it stands behind")
        self.f = _check_term("f", f)
        terms = tuple(_check_term("term", term) for term, _ in behind)
        if len(behind) == 1 and scales is None:
            self.g, self.operator = terms[0], behind[0][1]
        else:
            shapes = [tuple(operator(start).shape[1:]) for _, operator in behind]
            self.operator = Stack([operator for _, operator in behind], shapes, scales)
            self.g = Stacked(terms, shapes, scales)
        self.data_strong_convexity, self.data_smoothness = f.strong_convexity, f.smoothness
        with torch.no_grad():
            if self.value(start).shape != (len(start),):
                raise InputError("start", f"shape {shape_of(start)}", "points that the terms give one value each for")

    def start(self) -> Tensor:
        return self.points

    def check_start(self, x0: Tensor) -> Tensor:
        if x0.shape[1:] != self.points.shape[1:]:
            raise InputError("x0", f"shape {shape_of(x0)}", f"shape {shape_of(self.points)}, as the start has")
        return super().check_start(x0)

    def select(self, index: Index) -> Composite:
        part = super().select(index)
        part.f, part.g = self.f.select(index), self.g.select(index)
        part.data_strong_convexity, part.data_smoothness = part.f.strong_convexity, part.f.smoothness
        return part

    def double(self) -> Composite:
        return doubled(self)

    def subgradient(self, x: Tensor) -> Tensor:
        return self.f.subgradient(x) + self.operator.adjoint(self.g.subgradient(self.operator(x)))

    def data_value(self, x: Tensor) -> Tensor:
        return self.f.value(x)

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
        most = 1 / ((1 + 8 * eps) * self.f.gauge(-u) + self.f.gauge(error)).clamp(min=torch.finfo(p.dtype).tiny)
        factor = self.g.best_multiple(p, most)
        return p * factor.reshape(-1, *(1,) * (p.ndim - 1))

    def dual_value(self, p: Tensor) -> Tensor:
        p = self.feasible_dual(p)
        return self.tilted_minimum(self.operator.adjoint(p)) - self.regulariser_conjugate(p)

    def gap(self, x: Tensor, dual: Tensor) -> Tensor:
        p = self.feasible_dual(dual)
        residual = self.data_residual(x, self.operator.adjoint(p))
        return residual + self.regulariser_residual(self.operator(x), p)

    def gap_rounding(self, x: Tensor, p: Tensor, value: Tensor, gap: Tensor) -> Tensor:
        """That of both residuals, from the errors of Kx and K'p."""
        p = self.feasible_dual(p)
        z, u, none = self.operator(x), self.operator.adjoint(p), torch.zeros_like(gap)
        first, second = self.data_residual(x, u), self.regulariser_residual(z, p)
        rounding = self.f.rounding(x, -u, none, self.operator.adjoint_error(p), first)
        return rounding + self.g.rounding(z, p, self.operator.error(x, z), none, second)


def _check_term(argument: str, term: object) -> Term:
    if not isinstance(term, Term):
        raise CapabilityError(argument, type(term).__name__, "an lmd.terms.Term")
    return term
