"""The lasso, sparse linear regression: a composite problem that is not about images."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor

from lmd.checks import check_batch, check_count, check_finite, check_positive, check_same_kind, shape_of
from lmd.copies import doubled
from lmd.errors import InputError
from lmd.operators.matrix import Matrix
from lmd.problems.base import Family
from lmd.problems.composite import CompositeProblem
from lmd.problems.least_squares import check_matrix
from lmd.terms.base import Scale, per_instance, size_of, sum_instances


class Lasso(CompositeProblem):
    r"""F_i(x) = 1/2 ||A x - b_i||^2 + weight_i ||x||_1 with one A `(m, d)` for the batch; b `(B, m)`, x `(B, d)`.

    As a composite problem f is the l1 norm, K is A, and g(z) = 1/2 ||z - b||^2; dual points q `(B, m)` are free, with
    g*(q) = 1/2 ||q||^2 + <b, q>, and at the solution q = Ax - b.

    *The dual.* m(u) = min_x weight ||x||_1 + <u, x> is 0 where |u| <= weight everywhere and -infinity elsewhere, so
    `gap` and `dual_value` first multiply q by the number that makes A'q feasible and the bound best: the dual value is
    a parabola in that number. `tilted_minimiser` is about the same problem with |x_j| <= `radius`, which every
    minimiser fulfils, as weight ||x||_1 <= F(x) <= F(0) = 1/2 ||b||^2 at it; so is the finite `tilted_minimum`.

    >>> problem = Lasso(torch.eye(2), torch.tensor([[3.0, 0.2]]), weight=1.0)
    >>> problem.value(x := torch.tensor([[2.0, 0.0]])), problem.gap(x, torch.tensor([[-1.0, -0.2]]))
    (tensor([2.5200]), tensor([0.]))
    """

    batched = ("b", "weight")

    def __init__(self, A: Tensor, b: Tensor, weight: float | Tensor) -> None:
        self.operator: Matrix = Matrix(check_matrix("A", A))
        self.A = A
        self.b = check_batch("b", b)
        if b.shape[1:] != A.shape[:1]:
            raise InputError("b", f"shape {shape_of(b)}", f"shape (B, {A.shape[0]}) to go with A {shape_of(A)}")
        check_same_kind("b", b, "A", A)
        self.weight = _check_weights(weight, b)

    @property
    def radius(self) -> Tensor:
        """What no entry of a minimiser exceeds `(B,)`."""
        return self.b.square().sum(dim=1) / (2 * self.weight)

    def check_start(self, x0: Tensor) -> Tensor:
        if x0.shape[1:] != self.A.shape[1:]:
            accepted = f"shape (B, {self.A.shape[1]}) to go with A {shape_of(self.A)}"
            raise InputError("x0", f"shape {shape_of(x0)}", accepted)
        return super().check_start(x0)

    def start(self) -> Tensor:
        """x = 0."""
        return self.b.new_zeros(len(self.b), self.A.shape[1])

    def subgradient(self, x: Tensor) -> Tensor:
        return self.misfit_gradient(x) + self.weight[:, None] * x.sign()

    def misfit_gradient(self, x: Tensor) -> Tensor:
        """A'(Ax - b), the gradient of 1/2 ||Ax - b||^2."""
        return self.operator.adjoint(self.operator(x) - self.b)

    def data_value(self, x: Tensor) -> Tensor:
        """weight ||x||_1."""
        return self.weight * x.abs().sum(dim=1)

    def data_prox(self, x: Tensor, step: Scale, out: Tensor | None = None) -> Tensor:
        """Entries drawn to 0 by step * weight."""
        bound = (step * self.weight)[:, None]
        return torch.sub(x, torch.minimum(torch.maximum(x, -bound), bound), out=out)

    def tilted_minimiser(self, u: Tensor, out: Tensor | None = None) -> Tensor:
        ends = torch.where(u.abs() > self.weight[:, None], -u.sign() * self.radius[:, None], 0.0)
        return ends if out is None else out.copy_(ends)

    def regulariser_value(self, z: Tensor) -> Tensor:
        return 0.5 * sum_instances((z - self.b).square())

    def project_dual(self, p: Tensor, out: Tensor | None = None) -> Tensor:
        """p itself: g* is finite everywhere."""
        return p if out is None else out.copy_(p)

    def dual_prox(self, p: Tensor, step: Scale, out: Tensor | None = None) -> Tensor:
        by = per_instance(step, p)
        return torch.div(p - by * self.b, 1 + by, out=out)

    def regulariser_conjugate(self, p: Tensor) -> Tensor:
        return sum_instances(p * (0.5 * p + self.b))

    def regulariser_residual(self, z: Tensor, p: Tensor) -> Tensor:
        return 0.5 * sum_instances((z - self.b - p).square())

    def feasible_dual(self, p: Tensor) -> Tensor:
        """The multiple of each p for which |A'p| <= weight and the dual value is largest."""
        tiny = torch.finfo(p.dtype).tiny
        most = self.weight / self.operator.adjoint(p).abs().amax(dim=1).clamp(min=tiny)
        best = -sum_instances(p * self.b) / sum_instances(p.square()).clamp(min=tiny)
        return p * torch.minimum(torch.maximum(best, -most), most)[:, None]

    def dual_value(self, p: Tensor) -> Tensor:
        """-g* at `feasible_dual(p)`: a lower bound on the minimum `(B,)`."""
        return -self.regulariser_conjugate(self.feasible_dual(p))

    def _rounding(self, x: Tensor) -> Tensor:
        """How far the computed Ax and A'x can be from the true ones `(B,)`."""
        return self.operator.roundings * self.operator.norm * torch.finfo(x.dtype).eps * size_of(x)

    def double(self) -> Lasso:
        return doubled(self)

    def gap_rounding(self, x: Tensor, p: Tensor, value: Tensor, gap: Tensor) -> Tensor:
        """Feasible in truth is p / (1 + excess): what that changes is part of it."""
        p, eps = self.feasible_dual(p), torch.finfo(x.dtype).eps
        excess = 8 * eps + self._rounding(p) / self.weight
        slack = (8 * eps + excess) * self.data_value(x) + self._rounding(p) * size_of(x)
        off = self._rounding(x) + 8 * eps * (size_of(self.b) + self.operator.norm * size_of(x))
        off = off + (8 * eps + excess) * size_of(p)
        return slack + (2**0.5) * (gap.sqrt() + value.sqrt()) * off + off.square()

    def gap(self, x: Tensor, dual: Tensor) -> Tensor:
        p = self.feasible_dual(dual)
        slack = self.weight[:, None] * x.abs() + self.operator.adjoint(p) * x
        return sum_instances(slack.clamp(min=0)) + self.regulariser_residual(self.operator(x), p)


class LassoFamily(Family):
    r"""Sparse x observed through one random matrix: b = A x + noise, weights a share of the largest that matters.

    A `(m, d)` has entries N(0, 1/m), drawn once from `seed`, or is given; x has `nonzeros` entries N(0, 1). At weight
    ||A'b||_inf the solution becomes 0; each instance has `share` of that for its weight. The start is 0.

    >>> problem, x0 = LassoFamily(20, 50).sample(4, torch.Generator().manual_seed(0))
    >>> x0.shape
    torch.Size([4, 50])
    """

    name = "lasso"

    def __init__(
        self,
        m: int = 100,
        d: int = 200,
        nonzeros: int = 10,
        noise: float = 0.05,
        share: float = 0.1,
        A: Tensor | None = None,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if A is None:
            generator = torch.Generator().manual_seed(seed)
            shape = (check_count("m", m), check_count("d", d))
            A = torch.randn(shape, dtype=torch.float64, generator=generator) / math.sqrt(m)
        self.A = check_matrix("A", A).to(dtype)
        self.nonzeros = check_count("nonzeros", nonzeros)
        if nonzeros > self.A.shape[1]:
            raise InputError("nonzeros", nonzeros, f"at most {self.A.shape[1]}, the columns of A")
        self.noise = check_positive("noise", noise, zero=True)
        self.share = check_positive("share", share)

    def with_noise(self, noise: float) -> LassoFamily:
        other = copy.copy(self)
        other.noise = noise
        return other

    def sample(self, batch: int, generator: torch.Generator) -> tuple[Lasso, Tensor]:
        m, d = self.A.shape
        kind = {"dtype": self.A.dtype, "device": generator.device, "generator": generator}
        places = torch.rand(batch, d, **kind).argsort(dim=1) < self.nonzeros  # type: ignore[call-overload]
        truth = torch.where(places, torch.randn(batch, d, **kind), 0.0)  # type: ignore[call-overload]
        A = self.A.to(generator.device)
        b = truth @ A.T + self.noise * torch.randn(batch, m, **kind)  # type: ignore[call-overload]
        problem = Lasso(A, b, self.share * (b @ A).abs().amax(dim=1))
        return problem, problem.start()


def _check_weights(weight: float | Tensor, b: Tensor) -> Tensor:
    if not isinstance(weight, Tensor):
        return b.new_full((len(b),), check_positive("weight", weight))
    if weight.shape != (len(b),):
        raise InputError("weight", f"shape {shape_of(weight)}", f"one number, or one per instance ({len(b)},)")
    check_same_kind("weight", weight, "b", b)
    if not bool((check_finite("weight", weight) > 0).all()):
        raise InputError("weight", f"{float(weight.min()):g}", "positive numbers")
    return weight
