"""Figure 1: gradient descent with projection against entropic mirror descent on the simplex."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lmd.mirrors import Entropic
from lmd.problems import SimplexFamily
from lmd.reproduction.experiments.base import MULTIPLIERS, Experiment, Session, measure, reached
from lmd.reproduction.experiments.curves import plot_methods
from lmd.reproduction.figures import figure, label_lines, log_floor
from lmd.reproduction.tables import Row, select
from lmd.solvers import MirrorDescent, ProjectedGradient, ScaledSteps, Solver

BASE_STEP = 0.1
ITERATIONS = 50
INSTANCES = {"quick": 50, "standard": 500, "paper": 500}
OBJECTIVES = {"kl": "KL divergence", "least-squares": "squared distance"}


class Simplex(Experiment):
    """500 functions of each class, minimised over the simplex of dimension 3 (or any other)."""

    name = "simplex"
    title = "Entropic mirror descent against gradient descent on the simplex"
    paper = "Figure 1"

    @classmethod
    def headline(cls, rows: Sequence[Row]) -> str:
        kl, squares = ([reached(rows, m, "loss", ITERATIONS, objective=o) for m in ("md", "gd")] for o in OBJECTIVES)
        return (
            f"The geometry decides: on the KL divergence mirror descent is at {kl[0]} after {ITERATIONS} iterations, "
            f"gradient descent at {kl[1]}; on the squared distance at {squares[0]} and {squares[1]}"
        )

    def __init__(self, dimension: int = 3) -> None:
        self.dimension = dimension

    def run(self, session: Session) -> None:
        session.facts.update(
            data="targets and starts uniform on the simplex", dimension=self.dimension, base_step=BASE_STEP
        )
        for objective in OBJECTIVES:
            generator = torch.Generator().manual_seed(session.seed)
            family = SimplexFamily(objective, self.dimension)
            problem, x0 = family.sample(INSTANCES[session.preset], generator)
            for multiplier in MULTIPLIERS:
                steps = ScaledSteps(BASE_STEP, multiplier)
                methods: dict[str, Solver[Any]] = {
                    "gd": ProjectedGradient(steps),
                    "md": MirrorDescent(Entropic(), steps),
                }
                for method, solver in methods.items():
                    result, _ = measure(solver, problem, x0, ITERATIONS, session.repeats)
                    session.record_run(method, result, ITERATIONS, objective=objective, multiplier=multiplier)
        draw(session)


def draw(session: Session) -> None:
    """Loss against iterations and against seconds, one column per class of functions."""
    with figure(8.0, 6.8) as drawing:
        panels = drawing.subplots(2, 2, sharey="col")
        for column, (objective, title) in enumerate(OBJECTIVES.items()):
            _column(panels[:, column], select(session.rows, objective=objective))
            panels[0, column].set_title(title)
            panels[0, column].set_xlabel("iteration")
            panels[1, column].set_xlabel("milliseconds, all instances together")
        for axes in panels[:, 0]:
            axes.set_ylabel(r"mean of $f(x_k) - f(x^\star)$")
        session.save_figure(
            "figure-1-simplex",
            drawing,
            "Mean loss of projected gradient descent (gd) and entropic mirror descent (md), the best of five steps "
            "in full and the others faint, against iterations (top) and time (bottom). The entropic geometry fits the "
            "KL divergence and not the squared distance.",
        )


def _column(panels: Any, rows: list[Row]) -> None:
    curves = plot_methods(panels, rows, "loss", ("gd", "md"), first=0)
    for axes in panels:
        axes.set_yscale("log")
        axes.set_ylim(bottom=log_floor(curves, 1e-35))
        label_lines(axes)
