"""Check that every safeguarded trained solver is at least as good as the classical method under all conditions."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lmd import zoo
from lmd.cli.common import Table
from lmd.errors import CapabilityError
from lmd.guarantees.certify import certify, run
from lmd.guarantees.diagnosis import EXCESS, GAP, Comparison, compare
from lmd.guarantees.safeguard import default_fallback, guard
from lmd.problems import Family, Problem, TVInpaintingFamily
from lmd.problems.base import offers
from lmd.reproduction import recipes, tasks
from lmd.reproduction.experiments.base import Experiment, Session
from lmd.reproduction.experiments.imaging import images_to_test
from lmd.reproduction.figures import figure, log_floor
from lmd.reproduction.tables import Row, number, select
from lmd.reproduction.tasks.task import HeldOut, gap_scale, minimum
from lmd.solvers import PDHG, Solver
from lmd.zoo.published import import_checkpoint
from lmd.zoo.solve import solve

INSTANCES = {"quick": 4, "standard": 50, "paper": 100}
SUBSETS = {"quick": 2, "standard": 10, "paper": 20}
ITERATIONS = {"quick": 100, "standard": 1000, "paper": 1000}
SHOWN = {"quick": 2, "standard": 8, "paper": 16}  # images in the figure
SHOWN_CONDITION = 1  # the condition in the figure: 5% noise, or shifted features
SHOWN_ITERATIONS = {"quick": 30, "standard": 100, "paper": 100}
SIDE = 96
CROP = {"quick": 32, "standard": SIDE, "paper": SIDE}

CLOSE = 1e-5  # runs with known minima end when all instances are within this relative gap
TEST_SEED = 4_000_000
CHECKPOINTS = {"inpainting_780": "published-inpainting", "svm_3000": "published-svm"}  # file names, and methods


@dataclass(frozen=True)
class Case:
    """A solver in one condition."""

    solver: str
    condition: str
    problem: Problem
    x0: Tensor
    proven: Tensor | None  # lower bounds on the minima `(B,)`, shared by all solvers, if a solve proves them


class SafeguardExperiment(Experiment):
    """Safeguarded solvers on held-out instances with more noise and shifted features than in training."""

    name = "safeguard"
    title = "Every trained solver, safeguarded: never behind the classical method, always at the minimum in the end"
    paper = "no figure of the paper: the claim of docs/guarantees.md"
    imaging = True

    @classmethod
    def tables(cls, rows: Sequence[Row]) -> list[Table]:
        return [*super().tables(rows), *promise_table(rows)]

    def run(self, session: Session) -> None:
        solvers: dict[str, Solver[Any]] = {name: zoo.load(name, bare=True) for name in guarded_solvers(session.preset)}
        checkpoints = find_checkpoints()
        solvers |= {CHECKPOINTS[path.name]: import_checkpoint(path) for path in checkpoints}
        session.facts["instances"] = INSTANCES[session.preset]
        session.facts["checkpoints"] = ", ".join(path.name for path in checkpoints) or "none beside LMD_DATA"
        conditions, shown = Conditions(session), shown_case(solvers)
        for name, solver in solvers.items():
            for place, case in enumerate(conditions.of(name)):
                found = record_case(session, case, solver)
                if (name, place) == (shown, SHOWN_CONDITION):
                    record_divergence(session, case, solver, found)


def guarded_solvers(preset: str) -> list[str]:
    """Every solver that ships; at quick size without those whose true minima take long to find."""
    return [name for name in zoo.names() if not (preset == "quick" and recipes.task_of(name).slow)]


def find_checkpoints() -> list[Path]:
    """The published checkpoints in the folder `published` beside the one that LMD_DATA names."""
    named = os.environ.get("LMD_DATA")
    if not named:
        return []
    folder = Path(named).expanduser().resolve().parent / "published"
    return [folder / name for name in CHECKPOINTS if (folder / name).is_file()]


class Conditions:
    """Held-out instances for each solver, drawn once for all solvers of a family."""

    def __init__(self, session: Session) -> None:
        self.session, self.preset = session, session.preset
        self._drawn: dict[object, list[tuple[str, Problem, Tensor, Tensor | None]]] = {}

    def of(self, name: str) -> Iterator[Case]:
        """Yield one case of a solver for each condition."""
        solver = "svm-pair-10" if name == "published-svm" else name
        key = name if name == "published-inpainting" else recipes.recipe(solver).family
        if key not in self._drawn:
            self._drawn[key] = list(self._draw(solver))
        for condition, problem, x0, proven in self._drawn[key]:
            yield Case(name, condition, problem, x0, proven)

    def _draw(self, solver: str) -> Iterator[tuple[str, Problem, Tensor, Tensor | None]]:
        if solver == "published-inpainting":
            task, family = tasks.get("inpaint"), published_inpainting(self.images)
        else:
            recipe, task = recipes.recipe(solver), recipes.task_of(solver)
            wanted = HeldOut(self.preset, SUBSETS[self.preset], CROP[self.preset], self.images)
            family = recipe.source.held_out(recipe.family(self.preset), wanted)
        for condition, harder in task.conditions(family).items():
            generator = torch.Generator().manual_seed(TEST_SEED + self.session.seed)
            problem, x0 = harder.sample(INSTANCES[self.preset], generator)
            yield condition, problem, x0, proven_bound(problem, x0)

    @cached_property
    def images(self) -> tuple[Tensor, ...]:
        """All test images, the user's or our own, cropped to 96 x 96 pixels or to the size of the smallest."""
        self.session.facts["images"], found = images_to_test(self.session.images, None, SIDE)
        return tuple(found)


def published_inpainting(images: Sequence[Tensor]) -> Family:
    """Return the problem that the published checkpoint was trained for: half the objective, 80% of the pixels known.

    Its networks divide by the number of pixels, so crops of another size than 96 x 96 would be another solver.
    """
    return TVInpaintingFamily(images, halved=True)


def proven_bound(problem: Problem, x0: Tensor) -> Tensor | None:
    """Return lower bounds on the minima `(B,)` from one solve; None for vectors and for problems without PDHG."""
    if x0.ndim == 2 or not offers(problem, PDHG().needs):
        return None
    solved = solve(problem, GAP / 4, x0=x0)
    return (solved.certificate or certify(solved)).lower_bound


def record_case(session: Session, case: Case, solver: Solver[Any]) -> Comparison:
    """Record how far the worst instance is above its fall-back early, and above the minimum in the end."""
    guarded = guard(solver.to(case.x0.dtype), case.problem)
    if guarded is None:
        given = f"{type(case.problem).__name__}, for which no fall-back is known"
        raise CapabilityError("problem", given, "one with a classical method")
    iterations = ITERATIONS[session.preset]
    proven = known_minimum(case) if case.proven is None else case.proven
    target = target_of(case, proven)
    found = compare(guarded, case.problem, case.x0, iterations=iterations, target=target, proven=proven)
    fell_back = found.guarded.history.diagnostics["fallback"][1 : found.early + 1].nanmean()
    settings = {
        "condition": case.condition,
        "instances": len(case.x0),
        "fallback": type(default_fallback(case.problem)).__name__,
    }
    session.record(case.solver, found.early, "excess_over_fallback", float(found.excess.max()), **settings)
    session.record(case.solver, found.early, "fallback_share", float(fell_back), **settings)
    session.record(
        case.solver, max(iterations, found.early), "largest_relative_gap", float(found.gap.max()), **settings
    )
    kept = bool((found.excess <= EXCESS).all() and (found.gap <= GAP).all())
    session.log("case", solver=case.solver, kept=kept, iterations=int(found.guarded.iterations.max()), **settings)
    return found


def known_minimum(case: Case) -> Tensor | None:
    """Return the minima `(B,)`, or None where no reference method finds them."""
    try:
        return minimum(case.problem)
    except CapabilityError:
        return None


def target_of(case: Case, least: Tensor | None) -> Tensor | None:
    """Return values at which a run may end, close to the minimum, or None for images, whose minima are expensive."""
    if case.x0.ndim > 2 or least is None:
        return None
    return least + CLOSE * gap_scale(case.problem, least, case.x0)


def shown_case(solvers: dict[str, Solver[Any]]) -> str:
    """The solver of the figure: the published one if it is available, else the paper's algorithm that ships."""
    return "published-inpainting" if "published-inpainting" in solvers else "svm-published-10"


def record_divergence(session: Session, case: Case, solver: Solver[Any], found: Comparison) -> None:
    """Record and draw a solver alone and guarded on the first instances, far past the trained iterations."""
    count, iterations = SHOWN[session.preset], SHOWN_ITERATIONS[session.preset]
    name, part = case.solver, slice(0, count)
    alone = run(solver, case.problem.select(part), case.x0[part], iterations, divergence_factor=1e30)
    curves = {}
    for method, values in (("alone", alone.history.values), ("guarded", found.guarded.history.values[:, part])):
        values = torch.cat([values, values[-1:].expand(iterations, -1)])[: iterations + 1]  # a run may have ended
        curves[method] = gaps = (values.double() - found.minimum[part]) / found.scale[part]
        for k, row in enumerate(gaps):
            for metric, value in (("relative_gap", row.mean()), ("largest_relative_gap", row.max())):
                session.record(method, k, metric, float(value), solver=name, condition=case.condition)
    session.facts["figure shows"] = f"{name}, {case.condition}, {count} instances"
    draw(session, name, case.condition, solver.horizon or 10, curves)


def draw(session: Session, name: str, condition: str, horizon: int, curves: dict[str, Tensor]) -> None:
    """Every instance's relative gap by iteration, alone and guarded."""
    styles = {"alone": ("#d62728", "solid"), "guarded": ("#2ca02c", (0, (4, 1.5)))}
    with figure(7.4, 4.6) as drawing:
        axes = drawing.add_subplot()
        for method, gaps in curves.items():
            colour, style = styles[method]
            for place, curve in enumerate(gaps.T.tolist()):
                label = method if place == 0 else None
                axes.plot(range(len(curve)), curve, color=colour, linestyle=style, linewidth=1.3, label=label)
        axes.axvline(horizon, color="0.6", linewidth=1.0, zorder=0)
        seen = [value for gaps in curves.values() for value in gaps.flatten().tolist() if math.isfinite(value)]
        axes.set(xlabel="iteration", ylabel=r"$(f - \min f)\, /\, \min f$", yscale="log")
        axes.set_ylim(log_floor([seen], 1e-9), 1e3 * max(float(gaps[0].max()) for gaps in curves.values()))
        axes.set_title(f"{name}, {condition}: each instance")
        axes.legend(frameon=False, loc="upper left")
        session.save_figure(
            "safeguard",
            drawing,
            f"The solver {name} alone and safeguarded, {condition}, each of {len(next(iter(curves.values())).T)} "
            "instances. The grey line ends the iterations it was trained for.",
        )


def promise_table(rows: Sequence[Row]) -> list[Table]:
    """The worst instance of each safeguarded solver in each condition, where an experiment measured it."""
    lines = []
    for early in (row for row in rows if row["metric"] == "excess_over_fallback" and "fallback" in row):
        same = {key: early.get(key) for key in ("method", "condition")}
        shares = select(rows, metric="fallback_share", **same)
        gaps = [row for row in select(rows, metric="largest_relative_gap", **same) if "instances" in row]
        if not shares or not gaps:
            continue
        late = gaps[0]
        settings = (early.get("condition"), early["fallback"], early.get("instances"))
        figures = (number(shares[0]["value"]), number(early["value"]), number(late["value"]))
        lines.append((early["method"], *map(str, settings), *figures))
    if not lines:
        return []
    columns = ("solver", "condition", "fall-back", "instances", "fell back")
    return [
        Table(
            "Safeguarded, the worst instance",
            (*columns, f"above the fall-back at {early['iteration']}", f"relative gap at {late['iteration']}"),
            tuple(lines),
        )
    ]
