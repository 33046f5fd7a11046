"""Mirror descent, classical and learned: the paper's algorithm, for any mirror and any steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from lmd.core.checks import check_count
from lmd.errors import InputError
from lmd.mirrors.base import DUAL_NORM, Mirror, norm_of
from lmd.problems.base import Problem
from lmd.solvers.base import Solver, State
from lmd.solvers.steps import LearnedSteps, Step, Steps, as_steps
from lmd.terms.domain import same_set


@dataclass(frozen=True)
class MirrorState(State):
    """Points, and the dual points they were made from."""

    target: Tensor | None = None
    """y_k `(B, ...)`: where `to_dual(x)` should be; None before the first step."""

    dual: Tensor | None = None
    """to_dual(x) `(B, ...)` where it is known already, as in training; None where the step has to evaluate it."""


def observe(mirror: Mirror, size: Step, subgradient: Tensor) -> dict[str, Tensor]:
    """What certificates need to know of a step: its size, and the norm of the subgradient in the mirror's dual norm."""
    norm = norm_of(subgradient.detach(), DUAL_NORM[mirror.norm])
    step_size = size.detach().to(norm) if isinstance(size, Tensor) else norm.new_tensor(size)
    return {"step_size": step_size.expand_as(norm), "subgradient_norm": norm}


class MirrorDescent(Solver[MirrorState]):
    """y_k = to_dual(x_k) - t_k g_k, x_{k+1} = to_primal(y_k), with g_k a subgradient at x_k.

    With an exact mirror this is mirror descent (equation 2.1 of the paper), with a learned inverse it is approximate
    mirror descent (equation 3.2). Each step re-encodes its point, so the *dual residual* to_dual(x_k) - y_{k-1} of
    the step before is known without another evaluation; a mirror that is not exact has its norm in the history, beside
    `step_size` and `subgradient_norm`, all of which `lmd.guarantees` makes certificates from.

    Args:
        mirror: Any mirror.
        steps: The step-sizes t_k: a positive number, or `Steps`.
    """

    def __init__(self, mirror: Mirror, steps: Steps | float = 0.01) -> None:
        super().__init__()
        if not isinstance(mirror, Mirror):
            raise InputError("mirror", type(mirror).__name__, "an lmd.mirrors.Mirror")
        self.mirror = mirror
        self.steps = as_steps(steps)

    def config(self) -> dict[str, Any]:
        return {"mirror": self.mirror, "steps": self.steps}

    @property
    def step_cost(self) -> dict[str, int]:
        return {"subgradient": 1, "to_dual": 1, "to_primal": 1}

    @property
    def geometry(self) -> Mirror | None:
        return self.mirror

    @property
    def horizon(self) -> int | None:
        return self.steps.iterations if isinstance(self.steps, LearnedSteps) else None

    def keeps_to_domain(self, problem: Problem) -> bool:
        return same_set(self.mirror.domain, problem.domain)

    def with_steps(self, steps: Steps | float) -> MirrorDescent:
        """The same mirror with other steps: the paper's LMD with a fixed step-size."""
        return MirrorDescent(self.mirror, steps)

    def init(self, problem: Problem, x0: Tensor) -> MirrorState:
        return MirrorState(self.mirror.check("x0", x0))

    def encode(self, state: MirrorState) -> Tensor:
        """The dual point that the gradient step starts from."""
        return self.mirror.to_dual(state.x) if state.dual is None else state.dual

    def step(self, problem: Problem, state: MirrorState) -> MirrorState:
        dual = self.encode(state)
        size, subgradient = self.steps(state.iteration), problem.subgradient(state.x)
        diagnostics = observe(self.mirror, size, subgradient)
        encoded = dual is not state.target  # a lazy step goes on from the target itself, and knows no residual
        if state.target is not None and encoded and not self.mirror.is_exact:
            diagnostics["dual_residual"] = norm_of((dual - state.target).detach(), DUAL_NORM[self.mirror.norm])
        return self.decode(state, dual - size * subgradient, diagnostics)

    def decode(self, state: MirrorState, target: Tensor, diagnostics: dict[str, Tensor]) -> MirrorState:
        """The state whose points are made from `target`."""
        clipped = self.mirror.clipped(target)
        if clipped is not None:
            diagnostics["clipped"] = clipped
        return MirrorState(self.mirror.to_primal(target), state.iteration + 1, diagnostics, target=target)


class LearnedMirrorDescent(MirrorDescent):
    """Mirror descent with learned steps (the paper's adaptive LMD), trained for a number of iterations.

    `interval` is what the learned steps are clipped to; `extension` says how they go on past `iterations`.

    Args:
        mirror: Any mirror; its parameters are learned with the steps.
        iterations: N, how many steps are learned.
        initial_step: Each step to begin with, inside the interval.
        interval: (low, high), what the steps are clipped to.
        extension: The rule past N: "last", "mean", "min", "max" or "decay".
    """

    def __init__(
        self,
        mirror: Mirror,
        iterations: int = 10,
        initial_step: float = 0.01,
        interval: tuple[float, float] = (1e-3, 1e-1),
        extension: str = "min",
    ) -> None:
        self.iterations = check_count("iterations", iterations)
        super().__init__(mirror, LearnedSteps(iterations, initial_step, interval, extension))

    steps: LearnedSteps

    def config(self) -> dict[str, Any]:
        steps = self.steps
        return {
            "mirror": self.mirror,
            "iterations": steps.iterations,
            "initial_step": steps.initial,
            "interval": list(steps.interval),
            "extension": steps.extension,
        }
