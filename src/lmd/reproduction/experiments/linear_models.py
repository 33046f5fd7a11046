"""Figures 4 to 7: support vector machines and linear classifiers on features of digits."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lmd.cli.common import Table
from lmd.problems.classifiers import SubsetFamily, SubsetProblem
from lmd.reproduction.experiments.base import (
    HORIZON,
    MULTIPLIERS,
    Experiment,
    Session,
    draw_comparison,
    measure,
    reached,
)
from lmd.reproduction.tables import Row, best, distinct, number, select
from lmd.reproduction.tasks.task import Digits, HeldOut, gap_scale, minimum, optimum
from lmd.reproduction.tasks.vectors import CLASSIFIER_DIGITS, SVM_DIGITS
from lmd.solvers import LBFGS, Adam, GradientDescent, MirrorDescent, Nesterov, Solver, Status, run
from lmd.solvers.classical.interior_point import InteriorPoint

ITERATIONS = 100
BASE_STEP = 0.01
ADAM_STEP = 0.05
GAP = 1e-2
WARM_START_SEED = 3_000_000
TEST_SEED = 2_000_000
SECOND_ORDER = {
    "interior-learned": "interior-point steps from a learned start",
    "newton-learned": "Newton's steps from a learned start",
}
LABELS = {"loss": "mean loss", "relative_gap": "mean relative gap", "accuracy": "mean test accuracy"}


@dataclass(frozen=True)
class DigitInstances:
    """Test instances with their certified minima, and a warm start: the mean of some optima."""

    problem: SubsetProblem
    x0: Tensor
    minimum: Tensor  # f* of each instance `(B,)`
    scale: Tensor  # what gaps are divided by `(B,)`: f*, or where f* is 0 the value at x = 0
    accuracy: Callable[[Tensor], Tensor]  # the share of the test fold that each x classifies correctly `(B,)`
    warm_start: Tensor  # the mean of the optima of some training instances, for every instance `(B, n)`

    def relative_gap(self, values: Tensor) -> Tensor:
        """(f - f*) / scale of each instance, `(..., B)`."""
        return (values - self.minimum) / self.scale


class DigitExperiment(Experiment):
    """An experiment that also compares times with scikit-learn."""

    @classmethod
    def headline(cls, rows: Sequence[Row]) -> str:
        shown = {"lmd-adaptive": "the learned pair", "adam": "Adam", "gd": "gradient descent"}
        there = {row["method"] for row in rows}
        shown |= {name: label for name, label in SECOND_ORDER.items() if name in there}
        at = ", ".join(f"{label} at {reached(rows, name, 'relative_gap', HORIZON)}" for name, label in shown.items())
        warm = reached(rows, "warm-start", "relative_gap", HORIZON)
        return f"Gap after ten iterations: {at}; L-BFGS from the mean of training optima at {warm}"

    @classmethod
    def tables(cls, rows: Sequence[Row]) -> list[Table]:
        return [*super().tables(rows), *target_table(rows)]


def make_instances(session: Session, source: Digits, subsets: int, starts: int, **warm_settings: Any) -> DigitInstances:
    """Draw instances of the test fold, certify their minima, and average the optima of twenty training instances."""
    features, warm = source.features(session.preset), source.train(session.preset, **warm_settings)
    session.facts.update(data=features.data_name, feature_accuracy=features.accuracy, base_step=BASE_STEP)
    test: SubsetFamily = source.held_out(warm, HeldOut(session.preset, subsets=subsets))
    problem, x0 = test.sample(test.subsets * starts, torch.Generator().manual_seed(TEST_SEED + session.seed))
    least = minimum(problem)
    generator = torch.Generator().manual_seed(WARM_START_SEED + session.seed)
    solved = [optimum(warm.sample(warm.subsets, generator)[0]).x[0] for _ in range(20)]
    start = torch.stack(solved).mean(dim=0).to(x0).expand_as(x0).contiguous()
    everything = test.problem(test.features[None], test.labels[None], len(x0))
    session.facts["instances"] = f"{test.subsets} subsets of {test.subset} test pairs, {starts} starts each"
    session.facts["mean minimum"] = float(least.mean())
    return DigitInstances(problem, x0, least, gap_scale(problem, least, x0), everything.accuracy, start)


def record(
    session: Session,
    method: str,
    solver: Solver[Any],
    instances: DigitInstances,
    x0: Tensor | None = None,
    **settings: Any,
) -> None:
    """Run a method and add its rows: loss, relative gap, accuracy and seconds, with quantiles over the instances."""
    start = instances.x0 if x0 is None else x0
    result, accuracy = measure(
        solver, instances.problem, start, ITERATIONS, session.repeats, watch=lambda x: instances.accuracy(x).mean()
    )
    session.record_run(method, result, ITERATIONS, **settings)
    gaps = instances.relative_gap(result.history.values.double())
    curves = {
        "relative_gap": gaps.mean(dim=1).tolist(),
        "relative_gap_q10": gaps.nanquantile(0.1, dim=1).tolist(),
        "relative_gap_q90": gaps.nanquantile(0.9, dim=1).tolist(),
        "accuracy": accuracy,
    }
    session.record_curves(method, ITERATIONS, curves, **settings)


def record_learned(session: Session, method: str, learned: MirrorDescent, instances: DigitInstances) -> None:
    """Record a learned solver with fixed steps, and with its learned steps."""
    for multiplier in MULTIPLIERS:
        fixed = learned.with_steps(multiplier * BASE_STEP)
        record(session, method, fixed, instances, multiplier=multiplier)
    record(session, f"{method}-adaptive", learned, instances)


def record_comparison(session: Session, instances: DigitInstances, learned: MirrorDescent) -> None:
    """Record every method: the paper's, common classical ones, the warm start, and the learned solver."""
    for multiplier in MULTIPLIERS:
        classical: dict[str, Solver[Any]] = {
            "gd": GradientDescent(multiplier * BASE_STEP),
            "adam": Adam(multiplier * ADAM_STEP),
            "nesterov": Nesterov(multiplier * BASE_STEP),
        }
        for method, solver in classical.items():
            record(session, method, solver, instances, multiplier=multiplier)
    record_learned(session, "lmd", learned, instances)
    record(session, "lbfgs", LBFGS(), instances)
    record(session, "warm-start", LBFGS(), instances, instances.warm_start)
    tuned: dict[str, Callable[[float], Solver[Any]]] = {
        "gd-tuned": GradientDescent,
        "adam-tuned": Adam,
        "warm-start-gd": GradientDescent,
    }
    for method, make in tuned.items():
        start = instances.warm_start if method.startswith("warm") else instances.x0
        step = _best_step(make, instances, start)
        session.facts[f"{method} step"] = step
        record(session, method, make(step), instances, start)
    record(session, "warm-start-lmd", learned, instances, instances.warm_start)


def _best_step(make: Callable[[float], Solver[Any]], instances: DigitInstances, start: Tensor) -> float:
    """Return the step, from a grid of half decades, that is best on the test instances after twenty iterations."""
    grid = [float(10.0 ** (exponent / 2)) for exponent in range(-10, 2)]
    values = {step: run(make(step), instances.problem, start, 20).values.mean().item() for step in grid}
    return min(grid, key=lambda step: values[step] if math.isfinite(values[step]) else math.inf)


def compare(
    session: Session,
    instances: DigitInstances,
    learned: MirrorDescent,
    fit: Callable[[float], tuple[float, float]],
    others: Mapping[str, Solver[Any]] | None = None,
) -> None:
    """Record every method, and the times of the best ones and of scikit-learn to a relative gap."""
    record_comparison(session, instances, learned)
    solvers: dict[str, Solver[Any]] = {
        "lbfgs": LBFGS(),
        "warm-start": LBFGS(),
        "lmd-adaptive": learned,
        "warm-start-lmd": learned,
        **(others or {}),
    }
    for method, solver in (others or {}).items():
        record(session, method, solver, instances, instances.warm_start if method.startswith("warm") else None)
    record_wall_clock(session, instances, solvers, fit)


def fit_first(instances: DigitInstances, model: Any, weights: Callable[[Any], Any]) -> tuple[float, float]:
    """Seconds and relative gap of scikit-learn's model on the first instance."""
    problem = instances.problem.select(slice(0, 1))
    data_set = int(problem.subset[0])
    features, labels = problem.features[data_set].double().numpy(), problem.labels[data_set].numpy()
    begun = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tolerance makes it stop early
        model.fit(features, labels)
    seconds = time.perf_counter() - begun
    x = torch.as_tensor(weights(model), dtype=problem.features.dtype)
    return seconds, float((problem.value(x[None])[0] - instances.minimum[0]) / instances.scale[0])


def record_wall_clock(
    session: Session,
    instances: DigitInstances,
    solvers: dict[str, Solver[Any]],
    fit: Callable[[float], tuple[float, float]],
) -> None:
    """Record the seconds of solvers and of scikit-learn to a relative gap of 1e-2 on one instance, in the same run.

    `fit(tolerance)` trains scikit-learn's model and returns (seconds, relative gap); the loosest tolerance that reaches
    the gap counts. The value of a method that misses it in 500 iterations (100 at quick size) is None.
    """
    problem, x0 = instances.problem.select(slice(0, 1)), instances.x0[:1]
    target = instances.minimum[:1] + GAP * instances.scale[:1]
    times: dict[str, list[float]] = {}
    hopeless = set()
    for _ in range(max(3, session.repeats)):
        for method, solver in solvers.items():
            if method in hopeless:
                continue
            start = instances.warm_start[:1] if method.startswith("warm") else x0
            result = run(solver, problem, start, 100 if session.preset == "quick" else 500, target_value=target)
            if result.status[0] is Status.TARGET_REACHED:
                times.setdefault(method, []).append(float(result.history.seconds[-1]))
            else:
                hopeless.add(method)
        fitted = next((done for done in map(fit, (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)) if done[1] <= GAP), None)
        if fitted is not None:
            times.setdefault("scikit-learn", []).append(fitted[0])
    medians = {method: sorted(found)[len(found) // 2] for method, found in times.items()}
    reference = medians.get("scikit-learn", math.nan)
    for method in (*solvers, "scikit-learn"):
        seconds = medians.get(method, math.nan)
        session.record(method, "to gap", "seconds_to_gap_1e-2", seconds, instances=1)
        session.record(method, "to gap", "time_over_scikit_learn", seconds / reference, instances=1)


def target_table(rows: Sequence[Row]) -> list[Table]:
    """Time to a target on one instance, where an experiment measured it: rows whose iteration is "to gap"."""
    timed = select(rows, iteration="to gap")
    if not timed:
        return []
    metrics = distinct(timed, "metric")
    lines = []
    for method in distinct(timed, "method"):
        found = [best(select(timed, method=method, metric=metric)) for metric in metrics]
        lines.append((method, *("not reached" if row is None else number(row["value"]) for row in found)))
    columns = ("method", *(metric.replace("_", " ") for metric in metrics))
    return [Table("One instance from a random start", columns, tuple(lines))]


def draw_methods(session: Session, name: str, methods: Sequence[str], caption: str) -> None:
    """Loss, relative gap and accuracy of the methods, per iteration and time."""

    def finish(axes: Any, metric: str) -> None:
        if metric != "accuracy":
            axes.set_yscale("log")
            axes.set_ylim(*_range(session, methods, metric))

    draw_comparison(session, name, LABELS, methods, caption, finish=finish)


def _range(session: Session, methods: Sequence[str], metric: str) -> tuple[float, float]:
    """Return limits from the lowest value to ten times the start, so that diverging methods leave the panel."""
    rows = [row for row in session.rows if row["metric"] == metric and row["method"] in methods]
    values = [row["value"] for row in rows if row["value"] is not None and row["value"] > 0]
    start = max(row["value"] for row in rows if row["iteration"] == 0)
    return max(min(values) / 2, 1e-9 * start), 10 * start if math.isfinite(start) else 1.0


CLOSED_FORM_STARTS = {"quick": 5, "standard": 20, "paper": 20}
CLOSED_FORM_SUBSETS = {"quick": 2, "standard": 10, "paper": 10}
CLOSED_FORM_SOLVERS = {
    "lmd-quadratic": "svm-quadratic-10",
    "lmd-one-layer": "svm-one-layer-10",
    "lmd-one-layer-published": "svm-one-layer-published-10",
}


class SVMClosedForm(Experiment):
    """Quadratic and one-layer LMD against GD and Adam on the SVM of two classes of digits."""

    name = "svm-closed-form"
    title = "Support vector machines with mirrors that have a closed-form inverse"
    paper = "Figures 4 and 5"
    solvers = tuple(CLOSED_FORM_SOLVERS.values())

    def run(self, session: Session) -> None:
        instances = make_instances(
            session, SVM_DIGITS, CLOSED_FORM_SUBSETS[session.preset], CLOSED_FORM_STARTS[session.preset]
        )
        for multiplier in MULTIPLIERS:
            gd, adam = GradientDescent(multiplier * BASE_STEP), Adam(multiplier * ADAM_STEP)
            record(session, "gd", gd, instances, multiplier=multiplier)
            record(session, "adam", adam, instances, multiplier=multiplier)
        for method, name in CLOSED_FORM_SOLVERS.items():
            learned = session.learned(name, method)
            record_learned(session, method, learned, instances)
            if method == "lmd-quadratic":
                _record_eigenvalues(session, method, learned.mirror)
            draw_methods(
                session,
                f"figure-{'4' if method == 'lmd-quadratic' else '5'}-{method.removeprefix('lmd-')}",
                ("gd", "adam", method, f"{method}-adaptive"),
                f"SVM on features of {session.facts['data']}: loss, relative gap and test accuracy of {method}, "
                "gradient descent and Adam, against iterations and time. The grey line ends the trained iterations.",
            )


def _record_eigenvalues(session: Session, method: str, mirror: Any) -> None:
    """Record how many eigenvalues of A exceed 1 and 0.5, as in the caption of Figure 4, and all eigenvalues."""
    eigenvalues = torch.linalg.eigvalsh(mirror.matrix.detach())
    for level in (1.0, 0.5):
        session.record(method, 10, "eigenvalues_above", float((eigenvalues > level).sum()), level=level)
    for index, eigenvalue in enumerate(eigenvalues):
        session.record(method, 10, "matrix_eigenvalue", float(eigenvalue), index=index)


SVM_STARTS = {"quick": 4, "standard": 20, "paper": 100}
SVM_SUBSETS = {"quick": 2, "standard": 10, "paper": 20}


class SVMExperiment(DigitExperiment):
    """The learned pair against GD, Adam, Nesterov, L-BFGS, a warm start, and scikit-learn."""

    name = "svm"
    title = "Support vector machines on digit features, with a learned mirror pair"
    paper = "Figure 6"
    solvers = ("svm-pair-10", "svm-published-10", "svm-interior-10")

    def run(self, session: Session) -> None:
        instances = make_instances(session, SVM_DIGITS, SVM_SUBSETS[session.preset], SVM_STARTS[session.preset])
        labels = ("lmd", "lmd-published", "interior-learned")
        learned, published, interior = (
            session.learned(name, label) for name, label in zip(self.solvers, labels, strict=True)
        )
        others: dict[str, Solver[Any]] = {"interior-learned": interior, "warm-start-interior": InteriorPoint()}
        compare(session, instances, learned, lambda tolerance: _fit_svc(instances, tolerance), others)
        record_learned(session, "lmd-published", published, instances)
        draw_methods(
            session,
            "figure-6-as-published",
            ("gd", "adam", "lmd", "lmd-adaptive", "lmd-published", "lmd-published-adaptive"),
            "The same networks in the paper's algorithm (lmd-published) and corrected for the drift of the learned "
            "inverse (lmd): without the correction the iterates settle where the round trip does, not at the minimum.",
        )
        draw_methods(
            session,
            "figure-6-svm",
            (
                *("gd", "adam", "nesterov", "lbfgs", "warm-start", "lmd", "lmd-adaptive"),
                *("warm-start-interior", "interior-learned"),
            ),
            f"SVM on features of {session.facts['data']}: loss, relative gap and test accuracy, per iteration and "
            "time. warm-start is L-BFGS, and warm-start-interior an interior-point method, from the mean of training "
            "optima; interior-learned has a learned start. The grey line ends the trained iterations.",
        )


def _fit_svc(instances: DigitInstances, tolerance: float) -> tuple[float, float]:
    """Seconds and relative gap of scikit-learn's SVC on the first instance."""
    from sklearn.svm import SVC

    problem: Any = instances.problem
    model = SVC(kernel="linear", C=problem.C, tol=tolerance)
    return fit_first(instances, model, lambda fitted: [*fitted.coef_[0], *fitted.intercept_])


CLASSIFIER_STARTS = {"quick": 3, "standard": 5, "paper": 20}
CLASSIFIER_SUBSETS = {"quick": 2, "standard": 10, "paper": 20}
WARM_START_RIDGE = 1e-4  # with it the cross entropy of separable data has minimisers, which the warm start averages


class LinearClassifierExperiment(DigitExperiment):
    """The learned pair against GD, Adam, Nesterov, L-BFGS, a warm start, and scikit-learn.

    The subsets are separable, so the infimum of the cross entropy is 0 and no minimiser exists.
    The relative gap is the loss over log(10), the loss of x = 0.
    """

    name = "linear-classifier"
    title = "Multi-class linear classifiers on digit features, with a learned mirror pair"
    paper = "Figure 7"
    solvers = ("linear-classifier-10", "linear-classifier-newton-10")

    def run(self, session: Session) -> None:
        session.facts["relative gap"] = "loss over log(10): the infimum is 0, as the subsets are separable"
        counts = CLASSIFIER_SUBSETS[session.preset], CLASSIFIER_STARTS[session.preset]
        instances = make_instances(session, CLASSIFIER_DIGITS, *counts, ridge=WARM_START_RIDGE)
        labels = ("lmd", "newton-learned")
        learned, newton = (session.learned(name, label) for name, label in zip(self.solvers, labels, strict=True))
        others = {"newton-learned": newton}
        compare(session, instances, learned, lambda tolerance: _fit_logistic(instances, tolerance), others)
        draw_methods(
            session,
            "figure-7-linear-classifier",
            ("gd", "adam", "nesterov", "lbfgs", "warm-start", "lmd", "lmd-adaptive", "newton-learned"),
            f"Linear classifier on features of {session.facts['data']}: cross entropy and test accuracy per iteration "
            "and time. warm-start is L-BFGS from the mean of training optima; newton-learned takes Newton's steps "
            "class by class from there, with learned numbers. The grey line ends the trained iterations.",
        )


def _fit_logistic(instances: DigitInstances, tolerance: float) -> tuple[float, float]:
    """Seconds and relative gap of scikit-learn's logistic regression, without penalty, on the first instance."""
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=1e8, fit_intercept=False, tol=tolerance, max_iter=2000)
    return fit_first(instances, model, lambda fitted: fitted.coef_.flatten())
