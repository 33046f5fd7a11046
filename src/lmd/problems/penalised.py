"""Sums f + g of a problem and a simple penalty, which proximal methods handle apart."""

from __future__ import annotations

import abc

import torch
from torch import Tensor

from lmd.checks import check_positive
from lmd.problems.base import Problem
from lmd.problems.domains import Domain


class Penalty(abc.ABC):
    """A convex function g whose proximal map is known in closed form for some mirrors."""

    def __init__(self, weight: float = 1.0) -> None:
        self.weight = check_positive("weight", weight)

    @abc.abstractmethod
    def value(self, x: Tensor) -> Tensor:
        """g of each instance: x `(B, ...)` to `(B,)`."""

    @abc.abstractmethod
    def subgradient(self, x: Tensor) -> Tensor:
        """A subgradient of g at x, same shape as x."""


class L1(Penalty):
    r"""g(x) = weight \sum_i |x_i|."""

    def value(self, x: Tensor) -> Tensor:
        return self.weight * x.abs().flatten(1).sum(dim=1)

    def subgradient(self, x: Tensor) -> Tensor:
        return self.weight * x.sign()


class NegativeEntropy(Penalty):
    r"""g(x) = weight \sum_i x_i log x_i for x >= 0, which draws points of the simplex to its centre."""

    def value(self, x: Tensor) -> Tensor:
        return self.weight * torch.special.xlogy(x, x).flatten(1).sum(dim=1)

    def subgradient(self, x: Tensor) -> Tensor:
        return self.weight * (1 + x.clamp(min=torch.finfo(x.dtype).tiny).log())


class PenalisedProblem(Problem):
    """f + g: `problem` is f, `penalty` is g; over the domain of f.

    >>> from lmd.problems import LeastSquares
    >>> lasso = PenalisedProblem(LeastSquares(torch.eye(2), torch.tensor([[3.0, 0.2]])), L1(2.0))
    >>> lasso.value(torch.tensor([[2.0, 0.0]]))
    tensor([5.0400])
    """

    def __init__(self, problem: Problem, penalty: Penalty) -> None:
        self.problem, self.penalty = problem, penalty

    @property
    def domain(self) -> Domain | None:  # type: ignore[override]  # nothing assigns it
        return self.problem.domain

    @property
    def batch_size(self) -> int | None:
        return self.problem.batch_size

    def check_start(self, x0: Tensor) -> Tensor:
        return self.problem.check_start(x0)

    def select(self, index: int | slice | Tensor) -> PenalisedProblem:
        return PenalisedProblem(self.problem.select(index), self.penalty)

    def double(self) -> PenalisedProblem | None:
        exact = self.problem.double()
        return None if exact is None else PenalisedProblem(exact, self.penalty)

    def value(self, x: Tensor) -> Tensor:
        return self.problem.value(x) + self.penalty.value(x)

    def subgradient(self, x: Tensor) -> Tensor:
        return self.problem.subgradient(x) + self.penalty.subgradient(x)

    @property
    def strong_convexity(self) -> Tensor | None:
        return self.problem.strong_convexity

    @property
    def terms(self) -> int | None:
        return self.problem.terms

    def minibatch(self, indices: Tensor) -> PenalisedProblem:
        return PenalisedProblem(self.problem.minibatch(indices), self.penalty)
