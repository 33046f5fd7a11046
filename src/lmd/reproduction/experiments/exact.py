"""Compare exact learned mirrors with pairs and classical methods, unguarded, for up to a thousand iterations."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lmd import zoo
from lmd.cli.common import Table
from lmd.errors import TrainingWarning
from lmd.mirrors import Euclidean
from lmd.problems import LeastSquaresFamily, TVDenoising, TVInpainting
from lmd.problems.base import Problem
from lmd.problems.image_families import add_noise, random_masks
from lmd.reproduction import recipes
from lmd.reproduction.experiments.base import Experiment, Session
from lmd.reproduction.experiments.imaging import generator_for, images_for, psnr
from lmd.reproduction.experiments.linear_models import TEST_SEED
from lmd.reproduction.figures import figure, legend_below, plot_curve
from lmd.reproduction.tables import Row, curve, distinct, method_tables, select
from lmd.reproduction.tasks.common import WEIGHT
from lmd.reproduction.tasks.task import HeldOut, minimiser, minimum
from lmd.reproduction.tasks.vectors import CLASSIFIER_DIGITS as CLASSIFIERS
from lmd.reproduction.tasks.vectors import SVM_DIGITS as SVMS
from lmd.solvers import LBFGS, PDHG, GradientDescent, LearnedMirrorDescent, MirrorDescent, Solver, run
from lmd.training import train

MARKS = (0, 1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500, 700, 1000)  # iterations to record
LONGEST = {"quick": 30, "standard": 1000, "paper": 1000}
PAIR_LONGEST = {"quick": 10, "standard": 100, "paper": 1000}  # an iteration of a pair costs as much as thirty others
IMAGES = {"quick": 2, "standard": 8, "paper": 100}
NOISES = {"quick": (0.05,), "standard": (0.01, 0.05, 0.1, 0.2), "paper": (0.01, 0.05, 0.1, 0.2)}
STARTS = {"quick": 4, "standard": 20, "paper": 100}
KEPT = 0.8
PANELS = ("least-squares", "svm", "linear-classifier", "denoise", "inpaint")
SHOWN = (10, 20, 100, 1000)
METRICS = ("relative_gap", "psnr")
METHODS = ("gd", "lgd", "lbfgs", "pdhg", "published", "pair", "exact")
NETWORKS = ("published", "pair")
STEPS_TRAINING: dict[str, Any] = {"batch": 4, "learning_rate": 2e-3, "schedule": "cosine", "value_weights": "last"}
STEPS_UPDATES = {"quick": 20, "standard": 200, "paper": 200}  # for the steps of learned gradient descent
PAIRS = {  # the learned pairs, by problem
    "svm": "svm-pair-10",
    "linear-classifier": "linear-classifier-10",
    "denoise": "denoise-pair-10",
    "inpaint": "inpaint-pair-10",
}
PUBLISHED = {"svm": "svm-published-10"}  # solvers with the published networks, trained as in the paper


@dataclass(frozen=True)
class ExactCase:
    """One problem with its solvers by the names of their methods."""

    name: str
    problem: Problem
    x0: Tensor
    minimum: Tensor
    solvers: Mapping[str, Solver[Any]]
    minimiser: Tensor | None = None  # of images, for PSNR; the smoothest if there are many


class ExactExperiment(Experiment):
    """Least squares, SVM, linear classifier, denoising and inpainting, all without a safeguard."""

    name = "exact"
    title = "Exact learned mirrors, unguarded, to a thousand iterations"
    paper = "the first open question of its conclusion"
    solvers = (
        "least-squares-quadratic-10",
        *(f"{name}-exact-10" for name in ("svm", "linear-classifier", "denoise", "inpaint")),
        *PAIRS.values(),
        *PUBLISHED.values(),
    )
    imaging = True

    @classmethod
    def tables(cls, rows: Sequence[Row]) -> list[Table]:
        parts = (method_tables(select(rows, metric=metric), metric, iterations=SHOWN) for metric in METRICS)
        return [*super().tables(rows), *(table for part in parts for table in part)]

    def run(self, session: Session) -> None:
        for case in _linear_cases(session):
            _record(session, case)
        images = images_for(session)[: IMAGES[session.preset]]
        learned = {name: {"lgd": _learned_gd(session, name), **_learned(session, name)} for name in PANELS[3:]}
        for noise in NOISES[session.preset]:
            generator = generator_for(session, round(1000 * noise))
            noisy = add_noise(images, noise, generator)
            mask = random_masks(len(images), images.shape[2], images.shape[3], KEPT, generator)
            denoising, inpainting = TVDenoising(noisy, WEIGHT), TVInpainting(mask * noisy, mask, WEIGHT)
            for name, problem in (("denoise", denoising), ("inpaint", inpainting)):
                known = (minimum(problem).double(), {"pdhg": PDHG(), **learned[name]}, minimiser(problem))
                _record(session, ExactCase(name, problem, problem.start(), *known), noise=100 * noise)
        _draw(session)


def learned_solver_of(session: Session, name: str) -> Solver[Any]:
    """Return the shipped solver if its data are photographs or, not at quick size, the same digits; else train one."""
    preset = session.preset
    if preset == "paper" or (zoo.card(name)["data"] == "photographs" and not session.retrain):
        preset = recipes.SHIPPED_PRESET
    with warnings.catch_warnings():  # training at quick size may not improve a solver that starts near optima
        warnings.simplefilter("ignore", TrainingWarning)
        return recipes.obtain(name, preset, retrain=session.retrain, progress=session.progress)


def _learned(session: Session, name: str) -> dict[str, Solver[Any]]:
    """Return exact mirrors, the corrected pair, and the published (else the same) pair in the paper's algorithm."""
    exact, pair = (learned_solver_of(session, solver) for solver in (f"{name}-exact-10", PAIRS[name]))
    published: Any = learned_solver_of(session, PUBLISHED[name]) if name in PUBLISHED else pair
    return {"published": MirrorDescent(published.mirror, published.steps), "pair": pair, "exact": exact}


def _learned_gd(session: Session, name: str) -> Solver[Any]:
    """Train gradient descent with ten learned steps, the last of which is repeated, on the family of the pair."""
    preset = "quick" if session.preset == "quick" else "standard"
    solver = LearnedMirrorDescent(Euclidean(), 10, 0.05, (1e-3, 0.5), "last")
    family = recipes.recipe(PAIRS[name]).family(preset)
    train(solver, family, updates=STEPS_UPDATES[session.preset], progress=session.progress, **STEPS_TRAINING)
    return solver


def _linear_cases(session: Session) -> list[ExactCase]:
    generator, starts = torch.Generator().manual_seed(TEST_SEED + session.seed), STARTS[session.preset]
    families: dict[str, Any] = {"least-squares": LeastSquaresFamily()}
    for name, source in (("svm", SVMS), ("linear-classifier", CLASSIFIERS)):
        families[name] = source.held_out(source.train(session.preset), HeldOut(session.preset, subsets=1))
    cases = []
    for name, family in families.items():
        problem, x0 = family.sample(starts, generator)
        lowest = minimum(problem).double()
        if name == "least-squares":
            methods: dict[str, Solver[Any]] = {"exact": learned_solver_of(session, "least-squares-quadratic-10")}
            methods["gd"] = GradientDescent(1 / 18)
        else:
            methods = _learned(session, name)
        cases.append(ExactCase(name, problem, x0, lowest, {**methods, "lbfgs": LBFGS()}))
    return cases


def _record(session: Session, case: ExactCase, **settings: Any) -> None:
    """Run every method of a case and add its rows: relative gap (over f at 0 where min f is 0), PSNR, seconds."""
    scale = torch.where(case.minimum > 1e-6, case.minimum, case.problem.value(torch.zeros_like(case.x0)).double())
    for method, solver in case.solvers.items():
        slow = method in NETWORKS and case.minimiser is not None
        longest = (PAIR_LONGEST if slow else LONGEST)[session.preset]
        seen: dict[int, float] = {}

        def look(state: Any, values: Tensor, seen: dict[int, float] = seen) -> None:
            if case.minimiser is not None and state.iteration in MARKS:
                seen[state.iteration] = float(psnr(state.x, case.minimiser).mean())

        result = run(solver, case.problem, case.x0, longest, callbacks=[look])
        gaps, history = (result.history.values.double() - case.minimum) / scale, result.history
        for k in (mark for mark in MARKS if mark < len(history)):
            where = {"problem": case.name, **settings}
            session.record(method, k, "relative_gap", float(gaps[k].mean()), **where)
            session.record(method, k, "relative_gap_worst", float(gaps[k].max()), **where)
            session.record(method, k, "seconds", float(history.seconds[k]), **where)
            if k in seen:
                session.record(method, k, "psnr", seen[k], **where)
        last, early = min(longest, len(gaps) - 1), min(20, longest // 2)
        falls = float((gaps[last] < gaps[early]).double().mean())
        session.record(method, last, f"share below iteration {early}", falls, problem=case.name, **settings)
        failed = sum(status.failed for status in result.status)
        session.record(method, last, "diverged_share", failed / len(result.status), problem=case.name, **settings)


def _draw(session: Session) -> None:
    """Plot the mean relative gap of each problem by iterations and by time; for images, at the second noise level."""
    with figure(4.2 * len(PANELS), 7.6) as drawing:
        panels = drawing.subplots(2, len(PANELS))
        for column, name in enumerate(PANELS):
            rows = select(session.rows, problem=name)
            noises = distinct(rows, "noise")
            rows = select(rows, noise=noises[min(1, len(noises) - 1)]) if noises else rows
            for method in distinct(rows, "method"):
                own = select(rows, method=method)
                iterations, gaps = curve(own, "relative_gap")
                plot_curve(panels[0, column], [max(k, 0.7) for k in iterations], gaps, method)
                plot_curve(panels[1, column], [1e3 * t for t in curve(own, "seconds")[1]][1:], gaps[1:], method)
            title = name if not noises else f"{name}, {noises[min(1, len(noises) - 1)]:g}% noise"
            panels[0, column].set(title=title, xlabel="iteration", ylabel="mean relative gap")
            panels[1, column].set(xlabel="ms, all instances together", ylabel="mean relative gap")
            for axes in panels[:, column]:
                axes.set(xscale="log", yscale="log")
                axes.set_ylim(bottom=max(axes.get_ylim()[0], 1e-9))
            panels[0, column].axvline(10, color="0.6", linewidth=1.0, zorder=0)
        legend_below(drawing, [method for method in METHODS if select(session.rows, method=method)])
        session.save_figure(
            "exact",
            drawing,
            "Mean relative gap per iteration and time, without a safeguard on anything. exact: learned exact mirrors, "
            "from iteration 10 (grey line) on backtracked; pair: the corrected pair of networks; published: the same "
            "networks in the paper's algorithm; lgd: gradient descent with learned steps.",
        )
