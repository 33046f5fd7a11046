"""Figure 7: multi-class linear classifiers on MNIST features, with a learned mirror pair."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from typing import Any

import torch

from lmd import zoo
from lmd.experiments.base import Experiment, Session
from lmd.experiments.linear_models import (
    BASE_STEP,
    Instances,
    draw_comparison,
    features_for,
    make_instances,
    record_comparison,
    record_wall_clock,
    target_table,
)
from lmd.problems import LinearClassifier, LinearClassifierFamily
from lmd.report.rows import Row
from lmd.report.tables import Table
from lmd.solvers import LBFGS, MirrorDescent, Solver
from lmd.zoo.linear_recipes import CLASSIFIER_SUBSET

STARTS = {"quick": 3, "standard": 5, "paper": 20}
SUBSETS = {"quick": 2, "standard": 10, "paper": 20}
WARM_START_RIDGE = 1e-4
"""The cross entropy of separable data has no minimiser; with this ridge it has, and the warm start averages those."""


class LinearClassifierExperiment(Experiment):
    """The learned pair against GD, Adam, Nesterov, L-BFGS, a warm start, and scikit-learn.

    Subsets of 2000 features are separable, so the infimum of the cross entropy is 0 and nobody attains it. The
    relative gap is the loss over log(10), the loss of x = 0.
    """

    name = "linear-classifier"
    title = "Multi-class linear classifiers on digit features, with a learned mirror pair"
    paper = "Figure 7"
    solvers = ("linear-classifier",)

    @classmethod
    def tables(cls, rows: Sequence[Row]) -> list[Table]:
        return [*super().tables(rows), *target_table(rows)]

    def run(self, session: Session) -> None:
        features = features_for(session.preset)
        subset = CLASSIFIER_SUBSET[features.data_name]
        train = LinearClassifierFamily(
            features.train_features, features.train_labels, subset=subset, ridge=WARM_START_RIDGE
        )
        subsets = SUBSETS[session.preset]
        test = LinearClassifierFamily(features.test_features, features.test_labels, subset=subset, subsets=subsets)
        session.facts.update(data=features.data_name, feature_accuracy=features.accuracy, base_step=BASE_STEP)
        session.facts["relative gap"] = "loss over log(10): the infimum is 0, as the subsets are separable"
        instances = make_instances(session, train, test, STARTS[session.preset])
        name = "linear-classifier"
        learned = zoo.obtain(name, session.preset, retrain=session.retrain, progress=session.progress)
        assert isinstance(learned, MirrorDescent)
        session.facts["lmd comes from"] = zoo.origin(name, session.preset, retrain=session.retrain)
        record_comparison(session, instances, learned)
        solvers: dict[str, Solver[Any]] = {
            "lbfgs": LBFGS(),
            "warm-start": LBFGS(),
            "lmd-adaptive": learned,
            "warm-start-lmd": learned,
        }
        record_wall_clock(session, instances, solvers, lambda tolerance: _scikit_learn(instances, tolerance))
        draw_comparison(
            session,
            "figure-7-linear-classifier",
            ("loss", "relative_gap", "accuracy"),
            ("gd", "adam", "nesterov", "lbfgs", "warm-start", "lmd", "lmd-adaptive"),
            f"Linear classifier on features of {features.data_name}: cross entropy and test accuracy per iteration and "
            "time. warm-start is L-BFGS from the mean of training optima. The grey line ends the trained iterations.",
        )


def _scikit_learn(instances: Instances, tolerance: float) -> tuple[float, float]:
    """Seconds and relative gap of scikit-learn's logistic regression, without penalty, on the first instance."""
    from sklearn.linear_model import LogisticRegression

    problem = instances.problem.select(slice(0, 1))
    assert isinstance(problem, LinearClassifier)
    data_set = int(problem.subset[0])
    features, labels = problem.features[data_set].double().numpy(), problem.labels[data_set].numpy()
    model = LogisticRegression(C=1e8, fit_intercept=False, tol=tolerance, max_iter=2000)
    begun = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it stopped early is what the tolerance is for
        model.fit(features, labels)
    seconds = time.perf_counter() - begun
    x = torch.tensor(model.coef_.flatten(), dtype=problem.features.dtype)
    return seconds, float((problem.value(x[None])[0] - instances.minimum[0]) / instances.scale[0])
