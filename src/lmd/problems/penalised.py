"""Sums f + g of a problem and a simple term, which proximal methods handle apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from lmd.core.batching import Index
from lmd.problems.base import Problem
from lmd.terms import Term
from lmd.terms.base import Scale


class PenalisedProblem(Problem):
    """f + g: `problem` is f, `penalty` is g, a term; over the domain of f. Where f is made of parts, use `Composite`.

    Args:
        problem: f, any problem.
        penalty: g, any term.

    >>> import torch
    >>> from lmd.problems.simplex import KLDivergence
    >>> from lmd.terms import NegativeEntropy
    >>> y = torch.tensor([[0.5, 0.5]])
    >>> PenalisedProblem(KLDivergence(y), NegativeEntropy(2.0)).value(y)
    tensor([-1.3863])
    """

    def __init__(self, problem: Problem, penalty: Term) -> None:
        self.problem, self.penalty, self.domain = problem, penalty, problem.domain

    @property
    def batch_size(self) -> int | None:
        return self.problem.batch_size

    def misfit_gradient(self, x: Tensor) -> Tensor:
        """The gradient of f."""
        return self.problem.subgradient(x)

    def check_start(self, x0: Tensor) -> Tensor:
        return self.problem.check_start(x0)

    def select(self, index: Index) -> PenalisedProblem:
        return PenalisedProblem(self.problem.select(index), self.penalty.select(index))

    def double(self) -> PenalisedProblem | None:
        exact = self.problem.double()
        return None if exact is None else PenalisedProblem(exact, self.penalty.double())

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


class Split(NamedTuple):
    """A problem as a function with a gradient plus a term with a prox: its penalty, or its domain."""

    value: Callable[[Tensor], Tensor]
    gradient: Callable[[Tensor], Tensor]
    term: Term | None  # None where there is neither

    def prox(self, x: Tensor, step: Scale) -> Tensor:
        """argmin_v h(v) + ||v - x||^2 / (2 step) of the term h; x itself without one."""
        return x if self.term is None else self.term.prox(x, step)


def split_of(problem: Any) -> Split:
    """A problem as the two parts that proximal methods work with; with a domain, a penalty is part of the function."""
    if not isinstance(problem, PenalisedProblem) or problem.domain is not None:
        return Split(problem.value, problem.subgradient, problem.domain)
    return Split(problem.problem.value, problem.misfit_gradient, problem.penalty)
