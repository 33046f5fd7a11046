"""Learning a solver on a family: sample, unroll, update, constrain; and again."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from lmd.errors import InputError
from lmd.problems.base import Family, as_problem
from lmd.solvers.base import Solver
from lmd.training.loss import UnrolledLoss
from lmd.training.result import TrainingResult
from lmd.training.settings import TrainingSettings


def train(solver: Solver[Any], family: Family, **settings: Any) -> TrainingResult:
    """Train `solver` in place on problems of `family`; `settings` are those of `TrainingSettings`."""
    chosen = TrainingSettings.from_arguments(settings)
    parameters = [parameter for parameter in solver.parameters() if parameter.requires_grad]
    if not parameters:
        raise InputError("solver", f"{type(solver).__name__} without parameters", "a solver with something to learn")
    loss = UnrolledLoss(solver, chosen)
    optimiser = torch.optim.Adam(parameters, lr=chosen.learning_rate, betas=chosen.betas)
    generator = torch.Generator(device=parameters[0].device)
    for step in range(chosen.steps):
        problem, x0 = family.sample(chosen.batch, generator.manual_seed(2 * (chosen.seed * 1_000_003 + step)))
        for group in optimiser.param_groups:
            group["lr"] = chosen.learning_rate_at(step)
        optimiser.zero_grad(set_to_none=True)
        loss(as_problem(problem), x0, chosen.consistency_weight_at(step)).loss.backward()
        optimiser.step()
        _constrain(solver)
    return TrainingResult(solver, chosen.steps)


def _constrain(solver: nn.Module) -> None:
    """Let every part of the solver that has a constraint apply it."""
    for module in solver.modules():
        if callable(constrain := getattr(module, "constrain_", None)):
            constrain()
