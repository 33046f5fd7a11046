"""Figure 6: support vector machines on MNIST features, with a learned mirror pair."""

from __future__ import annotations

from typing import Any

from lmd.reproduction.experiments.base import Session
from lmd.reproduction.experiments.linear_models import (
    DigitExperiment,
    DigitInstances,
    compare,
    draw_methods,
    fit_first,
    make_instances,
    record_learned,
)
from lmd.reproduction.tasks.svm import SOURCE
from lmd.solvers import InteriorPoint, Solver

STARTS = {"quick": 4, "standard": 20, "paper": 100}
SUBSETS = {"quick": 2, "standard": 10, "paper": 20}


class SVMExperiment(DigitExperiment):
    """The learned pair against GD, Adam, Nesterov, L-BFGS, a warm start, and scikit-learn."""

    name = "svm"
    title = "Support vector machines on digit features, with a learned mirror pair"
    paper = "Figure 6"
    solvers = ("svm-pair-10", "svm-published-10", "svm-interior-10")

    def run(self, session: Session) -> None:
        instances = make_instances(session, SOURCE, SUBSETS[session.preset], STARTS[session.preset])
        labels = ("lmd", "lmd-published", "interior-learned")
        learned, published, interior = (
            session.learned(name, label) for name, label in zip(self.solvers, labels, strict=True)
        )
        others: dict[str, Solver[Any]] = {"interior-learned": interior, "warm-start-interior": InteriorPoint()}
        compare(session, instances, learned, lambda tolerance: _scikit_learn(instances, tolerance), others)
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


def _scikit_learn(instances: DigitInstances, tolerance: float) -> tuple[float, float]:
    """Seconds and relative gap of scikit-learn's SVC on the first instance."""
    from sklearn.svm import SVC

    problem: Any = instances.problem
    model = SVC(kernel="linear", C=problem.C, tol=tolerance)
    return fit_first(instances, model, lambda fitted: [*fitted.coef_[0], *fitted.intercept_])
