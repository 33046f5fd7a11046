"""A wrapper that gives any solver minibatch subgradients, on problems that are finite sums."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from lmd.core.checks import check_count
from lmd.errors import InputError
from lmd.problems.base import Problem
from lmd.solvers.base import Solver, State, Wrapper


class FiniteSum(Protocol):
    """What it needs of a problem: terms, and the problem of some of them."""

    @property
    def terms(self) -> int: ...

    def minibatch(self, indices: Tensor) -> Problem: ...


class Stochastic(Wrapper[State, FiniteSum]):
    """Runs a solver whose every step sees `minibatch` of the problem's terms, drawn anew without replacement.

    The terms of iteration k depend on `seed` and k alone and are the same for all instances, so a run can be repeated,
    and an instance of a batch gives the answer of the instance alone. With `LazyMirrorDescent` it is LSMD, with
    `AcceleratedStochasticMirrorDescent` it is LASMD; it works for gradient descent or Adam as well.

    Args:
        solver: The solver inside.
        minibatch: Terms per step.
        seed: What the terms are drawn from, with the number of the iteration.

    >>> import lmd
    >>> problem, x0 = lmd.problems.LeastSquaresFamily().sample(3, torch.Generator().manual_seed(0))
    >>> solver = Stochastic(lmd.solvers.GradientDescent(0.02), minibatch=1)
    >>> bool((lmd.run(solver, problem, x0, iterations=50).values < problem.value(x0)).all())
    True
    """

    def __init__(self, solver: Solver[Any], minibatch: int, seed: int = 0) -> None:
        super().__init__(solver)
        self.minibatch = check_count("minibatch", minibatch)
        self.seed = check_count("seed", seed, least=0)

    def config(self) -> dict[str, Any]:
        return {"solver": self.solver, "minibatch": self.minibatch, "seed": self.seed}

    @property
    def needs(self) -> tuple[str, ...]:
        return (*self.solver.needs, "terms")

    @property
    def ends_proven(self) -> bool:
        """No: what is proven is about whole subgradients."""
        return False

    @property
    def init_cost(self) -> dict[str, int]:
        return self.solver.init_cost

    @property
    def step_cost(self) -> dict[str, int]:
        """That of the solver; its subgradients are of a minibatch, and count as such."""
        cost = dict(self.solver.step_cost)
        if "subgradient" in cost:
            cost["minibatch_subgradient"] = cost.pop("subgradient")
        return cost

    def init(self, problem: FiniteSum, x0: Tensor) -> State:
        if self.minibatch > problem.terms:
            raise InputError("minibatch", self.minibatch, f"at most {problem.terms}, the number of the problem's terms")
        return self.solver.init(problem, x0)

    def step(self, problem: FiniteSum, state: State) -> State:
        return self.solver.step(problem.minibatch(self.draw(problem, state)), state)

    def draw(self, problem: FiniteSum, state: State) -> Tensor:
        """The indices of this iteration's terms `(minibatch,)`."""
        # PyTorch's generator on the CPU takes the low 32 bits; odd factors spread seeds and iterations over them.
        generator = torch.Generator().manual_seed((0x9E3779B1 * self.seed + 0x85EBCA6B * state.iteration) % 2**32)
        return torch.randperm(problem.terms, generator=generator, device=generator.device)[: self.minibatch].to(
            state.x.device
        )
