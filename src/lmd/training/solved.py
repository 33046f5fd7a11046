"""A family of instances with their solutions, for training losses that compare with them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from lmd.core.checks import check_count
from lmd.problems.base import Family, Problem
from lmd.solvers.base import Solver

MAX_CHUNK = 100  # instances that are solved together


class SolvedFamily(Family):
    """`size` instances of a family, drawn once with `seed` and solved by so many iterations of a classical solver.

    `finish` maps the problem and its solution to another one, where there are many. Each sample has its solutions as
    `reference`. One instance in ten is held out. They are drawn and solved on first use.
    """

    def __init__(
        self,
        family: Family,
        size: int,
        solver: Solver[Any],
        iterations: int,
        seed: int = 0,
        finish: Callable[[Any, Tensor], Tensor] | None = None,
    ) -> None:
        self.family, self.solver, self.seed, self.finish = family, solver, seed, finish
        self.size, self.iterations = check_count("size", size, least=10), check_count("iterations", iterations)
        self.name = family.name

    @property
    def inside(self) -> Family:
        return self.family

    def sample(self, batch: int, generator: torch.Generator) -> tuple[Problem, Tensor]:
        return self._choose(range(len(self._solved) // 10, len(self._solved)), batch, generator)

    def held_out(self, batch: int, generator: torch.Generator) -> tuple[Problem, Tensor]:
        return self._choose(range(len(self._solved) // 10), batch, generator)

    def _choose(self, places: range, batch: int, generator: torch.Generator) -> tuple[Problem, Tensor]:
        """Draw instances of one of the chunks."""
        device = generator.device
        (place,) = torch.randint(len(places), (1,), generator=generator, device=device).tolist()
        problem, x0 = self._solved[places[place]]
        chosen = torch.randint(len(x0), (batch,), generator=generator, device=device).to(x0.device)
        return problem.select(chosen), x0[chosen]

    @cached_property
    def _solved(self) -> list[tuple[Problem, Tensor]]:
        """At least ten chunks of instances."""
        generator = torch.Generator().manual_seed(self.seed)
        chunk = min(MAX_CHUNK, self.size // 10)
        return [self._solve(*self.family.sample(chunk, generator)) for _ in range(self.size // chunk)]

    @torch.no_grad()
    def _solve(self, problem: Problem, x0: Tensor) -> tuple[Problem, Tensor]:
        state = self.solver.init(problem, x0)
        for _ in range(self.iterations):
            state = self.solver.step(problem, state)
        problem.reference = state.x if self.finish is None else self.finish(problem, state.x)
        return problem, x0
