"""Figure 6: support vector machines on MNIST features, with a learned mirror pair."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from lmd import zoo
from lmd.experiments.base import MULTIPLIERS, Experiment, Session
from lmd.experiments.linear_models import (
    BASE_STEP,
    Instances,
    draw_comparison,
    features_for,
    make_instances,
    record,
    record_comparison,
    record_wall_clock,
    target_table,
)
from lmd.problems import SVM, SVMFamily
from lmd.report.rows import Row
from lmd.report.tables import Table
from lmd.solvers import LBFGS, MirrorDescent, ScaledSteps, Solver
from lmd.zoo.linear_recipes import SVM_SUBSET

STARTS = {"quick": 4, "standard": 20, "paper": 100}
SUBSETS = {"quick": 2, "standard": 10, "paper": 20}


class SVMExperiment(Experiment):
    """The learned pair against GD, Adam, Nesterov, L-BFGS, a warm start, and scikit-learn."""

    name = "svm"
    title = "Support vector machines on digit features, with a learned mirror pair"
    paper = "Figure 6"
    solvers = ("svm", "svm-published")

    @classmethod
    def tables(cls, rows: Sequence[Row]) -> list[Table]:
        return [*super().tables(rows), *target_table(rows)]

    def run(self, session: Session) -> None:
        features = features_for(session.preset)
        subset = SVM_SUBSET[features.data_name]
        train = SVMFamily(features.train_features, features.train_labels, subset=subset)
        subsets = SUBSETS[session.preset]
        test = SVMFamily(features.test_features, features.test_labels, subset=subset, subsets=subsets)
        session.facts.update(data=features.data_name, feature_accuracy=features.accuracy, base_step=BASE_STEP)
        instances = make_instances(session, train, test, STARTS[session.preset])
        learned = zoo.obtain("svm", session.preset, retrain=session.retrain, progress=session.progress)
        assert isinstance(learned, MirrorDescent)
        session.facts["lmd comes from"] = zoo.origin("svm", session.preset, retrain=session.retrain)
        record_comparison(session, instances, learned)
        self._record_published(session, instances)
        solvers: dict[str, Solver[Any]] = {
            "lbfgs": LBFGS(),
            "warm-start": LBFGS(),
            "lmd-adaptive": learned,
            "warm-start-lmd": learned,
        }
        record_wall_clock(session, instances, solvers, lambda tolerance: _scikit_learn(instances, tolerance))
        draw_comparison(
            session,
            "figure-6-as-published",
            ("loss", "relative_gap", "accuracy"),
            ("gd", "adam", "lmd", "lmd-adaptive", "lmd-published", "lmd-published-adaptive"),
            "The same networks in the paper's algorithm (lmd-published) and corrected for the drift of the learned "
            "inverse (lmd): without the correction the iterates settle where the round trip does, not at the minimum.",
        )
        draw_comparison(
            session,
            "figure-6-svm",
            ("loss", "relative_gap", "accuracy"),
            ("gd", "adam", "nesterov", "lbfgs", "warm-start", "lmd", "lmd-adaptive"),
            f"SVM on features of {features.data_name}: loss, relative gap and test accuracy, per iteration and time. "
            "warm-start is L-BFGS from the mean of training optima. The grey line ends the trained iterations.",
        )

    def _record_published(self, session: Session, instances: Instances) -> None:
        """The paper's algorithm with the same networks, trained likewise, for comparison."""
        published = zoo.obtain("svm-published", session.preset, retrain=session.retrain, progress=session.progress)
        assert isinstance(published, MirrorDescent)
        session.facts["lmd-published comes from"] = zoo.origin("svm-published", session.preset, retrain=session.retrain)
        for multiplier in MULTIPLIERS:
            fixed = published.with_steps(ScaledSteps(BASE_STEP, multiplier))
            record(session, "lmd-published", fixed, instances, multiplier=multiplier)
        record(session, "lmd-published-adaptive", published, instances)


def _scikit_learn(instances: Instances, tolerance: float) -> tuple[float, float]:
    """Seconds and relative gap of scikit-learn's SVC on the first instance."""
    from sklearn.svm import SVC

    problem = instances.problem.select(slice(0, 1))
    assert isinstance(problem, SVM)
    data_set = int(problem.subset[0])
    features, labels = problem.features[data_set].double().numpy(), problem.labels[data_set].numpy()
    begun = time.perf_counter()
    model = SVC(kernel="linear", C=problem.C, tol=tolerance).fit(features, labels)
    seconds = time.perf_counter() - begun
    x = torch.tensor([*model.coef_[0], *model.intercept_], dtype=problem.features.dtype)
    value = problem.value(x[None])
    return seconds, float((value[0] - instances.minimum[0]) / instances.scale[0])
