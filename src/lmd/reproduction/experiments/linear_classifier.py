"""Figure 7: multi-class linear classifiers on MNIST features, with a learned mirror pair."""

from __future__ import annotations

from lmd.reproduction.experiments.base import Session
from lmd.reproduction.experiments.linear_models import (
    DigitExperiment,
    DigitInstances,
    compare,
    draw_methods,
    fit_first,
    make_instances,
)
from lmd.reproduction.tasks.linear_classifier import SOURCE

STARTS = {"quick": 3, "standard": 5, "paper": 20}
SUBSETS = {"quick": 2, "standard": 10, "paper": 20}
WARM_START_RIDGE = 1e-4
"""The cross entropy of separable data has no minimiser; with this ridge it has, and the warm start averages those."""


class LinearClassifierExperiment(DigitExperiment):
    """The learned pair against GD, Adam, Nesterov, L-BFGS, a warm start, and scikit-learn.

    Subsets of 2000 features are separable, so the infimum of the cross entropy is 0 and nobody attains it. The
    relative gap is the loss over log(10), the loss of x = 0.
    """

    name = "linear-classifier"
    title = "Multi-class linear classifiers on digit features, with a learned mirror pair"
    paper = "Figure 7"
    solvers = ("linear-classifier-10", "linear-classifier-newton-10")

    def run(self, session: Session) -> None:
        session.facts["relative gap"] = "loss over log(10): the infimum is 0, as the subsets are separable"
        counts = SUBSETS[session.preset], STARTS[session.preset]
        instances = make_instances(session, SOURCE, *counts, ridge=WARM_START_RIDGE)
        labels = ("lmd", "newton-learned")
        learned, newton = (session.learned(name, label) for name, label in zip(self.solvers, labels, strict=True))
        others = {"newton-learned": newton}
        compare(session, instances, learned, lambda tolerance: _scikit_learn(instances, tolerance), others)
        draw_methods(
            session,
            "figure-7-linear-classifier",
            ("gd", "adam", "nesterov", "lbfgs", "warm-start", "lmd", "lmd-adaptive", "newton-learned"),
            f"Linear classifier on features of {session.facts['data']}: cross entropy and test accuracy per iteration "
            "and time. warm-start is L-BFGS from the mean of training optima; newton-learned takes Newton's steps "
            "class by class from there, with learned numbers. The grey line ends the trained iterations.",
        )


def _scikit_learn(instances: DigitInstances, tolerance: float) -> tuple[float, float]:
    """Seconds and relative gap of scikit-learn's logistic regression, without penalty, on the first instance."""
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=1e8, fit_intercept=False, tol=tolerance, max_iter=2000)
    return fit_first(instances, model, lambda fitted: fitted.coef_.flatten())
