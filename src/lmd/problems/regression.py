"""Least squares (section 4.1 of the paper, Figures 2 and 3) and the lasso."""

from __future__ import annotations

import copy
import math
from functools import cached_property

import torch
from torch import Tensor

from lmd.core.batching import to_double
from lmd.core.checks import (
    check_batch,
    check_count,
    check_finite,
    check_floating,
    check_positive,
    check_same_kind,
    check_weights,
    shape_of,
)
from lmd.errors import InputError
from lmd.operators.matrix import Matrix
from lmd.problems.base import Family, Problem
from lmd.problems.composite import Composite
from lmd.terms import L1, Squares

PAPER_MATRIX = ((2.0, 1.0), (1.0, 2.0))  # the W of the paper; the eigenvalues of W'W are 9 and 1


def check_matrix(argument: str, matrix: Tensor) -> Tensor:
    """Return `matrix` if it is a finite floating-point matrix."""
    if check_finite(argument, check_floating(argument, matrix)).ndim != 2:
        raise InputError(argument, f"shape {shape_of(matrix)}", "a matrix (m, d)")
    return matrix


def check_sides(matrix: str, A: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return A `(m, d)`, whose name is `matrix`, and b `(B, m)` if they go together."""
    check_matrix(matrix, A), check_batch("b", b)
    if b.shape[1:] != A.shape[:1]:
        accepted = f"shape (B, {A.shape[0]}) to go with {matrix} {shape_of(A)}"
        raise InputError("b", f"shape {shape_of(b)}", accepted)
    check_same_kind("b", b, matrix, A)
    return A, b


class LeastSquares(Problem):
    """f_i(x) = ||W x - b_i||^2 with one W `(m, d)` for the batch; b `(B, m)`, x `(B, d)`.

    Args:
        W: The matrix `(m, d)`, the same for all instances.
        b: `(B, m)`.
    """

    batched = ("b",)

    def __init__(self, W: Tensor, b: Tensor) -> None:
        self.W, self.b = check_sides("W", W, b)
        self.point_shape = W.shape[1:]

    double = to_double

    def value(self, x: Tensor) -> Tensor:
        return (x @ self.W.T - self.b).square().sum(dim=1)

    def subgradient(self, x: Tensor) -> Tensor:
        return 2 * (x @ self.W.T - self.b) @ self.W

    @property
    def terms(self) -> int:
        """m, the number of rows of W."""
        return self.W.shape[0]

    def minibatch(self, indices: Tensor) -> LeastSquares:
        scale = (self.terms / len(indices)) ** 0.5
        return LeastSquares(scale * self.W[indices], scale * self.b[:, indices])

    def minimiser(self) -> Tensor:
        return torch.linalg.lstsq(self.W, self.b.T).solution.T

    @cached_property
    def _hessian_eigenvalues(self) -> Tensor:
        """Eigenvalues of the Hessian 2 W'W, which all instances share."""
        return 2 * torch.linalg.eigvalsh(self.W.T @ self.W)

    @property
    def smoothness(self) -> Tensor:
        return self._hessian_eigenvalues[-1]

    @property
    def strong_convexity(self) -> Tensor:
        return self._hessian_eigenvalues[0].clamp(min=0)


class LeastSquaresFamily(Family):
    """Least squares with standard normal right-hand sides b and starting points; by default W is the paper's matrix.

    Args:
        W: `(m, d)`; None is the paper's matrix.
        dtype: The dtype of the problems and the starting points.
    """

    name = "least-squares"

    def __init__(self, W: Tensor | None = None, dtype: torch.dtype = torch.float64) -> None:
        self.W = torch.tensor(PAPER_MATRIX, dtype=dtype, device="cpu") if W is None else check_matrix("W", W).to(dtype)

    def sample(self, batch: int, generator: torch.Generator) -> tuple[Problem, Tensor]:
        device, dtype = generator.device, self.W.dtype
        b, x0 = (torch.randn(batch, n, generator=generator, device=device, dtype=dtype) for n in self.W.shape)
        return LeastSquares(self.W.to(generator.device), b), x0


class Lasso(Composite):
    r"""F_i(x) = 1/2 ||A x - b_i||^2 + weight_i ||x||_1 with one A `(m, d)` for the batch; b `(B, m)`, x `(B, d)`.

    As a composite problem, f is the weighted l1 norm, K is A, and g(z) = 1/2 ||z - b||^2. For dual points q `(B, m)`,
    g*(q) = 1/2 ||q||^2 + <b, q>, and q = Ax - b at the solution. They are feasible if |A'q| <= weight in each entry,
    as min_x weight ||x||_1 + <u, x> is otherwise -infinity for u = A'q. `gap` takes the best feasible multiple of q.
    Proximal methods also solve the lasso, with f as their `penalty`.

    Args:
        A: `(m, d)`, the same for all instances.
        b: `(B, m)`.
        weight: A positive number, or one per instance `(B,)`.

    >>> problem = Lasso(torch.eye(2), torch.tensor([[3.0, 0.2]]), weight=1.0)
    >>> problem.value(x := torch.tensor([[2.0, 0.0]])), problem.gap(x, torch.tensor([[-1.0, -0.2]])) < 1e-5
    (tensor([2.5200]), tensor([True]))
    """

    batched = ("b", "weight")

    def __init__(self, A: Tensor, b: Tensor, weight: float | Tensor) -> None:
        self.A, self.b = check_sides("A", A, b)
        self.weight = check_weights(weight, b)
        start = b.new_zeros(len(b), A.shape[1])
        self.compose(L1(self.weight), (Squares(b, 0.5), Matrix(A)), start=start)


class LassoFamily(Family):
    r"""Lassos with sparse x observed through one random matrix: b = A x + noise.

    A `(m, d)` has entries N(0, 1/m), drawn once from `seed`, or is given; x has `nonzeros` entries N(0, 1). The weight
    is `share` times ||A'b||_inf, the smallest weight whose solution is 0. The start is 0.

    Args:
        m: Rows of A, if A is drawn.
        d: Columns of A, if A is drawn.
        nonzeros: The number of nonzero entries of x.
        noise: The standard deviation of the noise.
        share: The ratio of the weight of an instance to ||A'b||_inf.
        A: The matrix `(m, d)`; None draws one.
        seed: The seed of A.
        dtype: The dtype of the problems and the starting points.

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
            A = torch.randn(shape, dtype=torch.float64, device="cpu", generator=generator) / math.sqrt(m)
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
        device, dtype = generator.device, self.A.dtype
        places = torch.rand(batch, d, generator=generator, device=device, dtype=dtype).argsort(dim=1)
        normal = torch.randn(batch, d, generator=generator, device=device, dtype=dtype)
        truth = torch.where(places < self.nonzeros, normal, 0.0)
        A = self.A.to(generator.device)
        b = truth @ A.T + self.noise * torch.randn(batch, m, generator=generator, device=device, dtype=dtype)
        problem = Lasso(A, b, self.share * (b @ A).abs().amax(dim=1))
        return problem, problem.start()
