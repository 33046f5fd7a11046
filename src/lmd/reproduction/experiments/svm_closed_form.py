"""Figures 4 and 5: learned mirrors with closed-form inverses, training support vector machines."""

from __future__ import annotations

from typing import Any

import torch

from lmd.reproduction.experiments.base import MULTIPLIERS, Experiment, Session
from lmd.reproduction.experiments.linear_models import (
    ADAM_STEP,
    BASE_STEP,
    draw_methods,
    make_instances,
    record,
    record_learned,
)
from lmd.reproduction.tasks.svm import SOURCE
from lmd.solvers import Adam, GradientDescent, ScaledSteps

STARTS = {"quick": 5, "standard": 20, "paper": 20}
SUBSETS = {"quick": 2, "standard": 10, "paper": 10}
LEARNED = {
    "lmd-quadratic": "svm-quadratic-10",
    "lmd-one-layer": "svm-one-layer-10",
    "lmd-one-layer-published": "svm-one-layer-published-10",
}


class SVMClosedForm(Experiment):
    """Quadratic and one-layer LMD against GD and Adam on the SVM of two classes of digits."""

    name = "svm-closed-form"
    title = "Support vector machines with mirrors that have a closed-form inverse"
    paper = "Figures 4 and 5"
    solvers = tuple(LEARNED.values())

    def run(self, session: Session) -> None:
        instances = make_instances(session, SOURCE, SUBSETS[session.preset], STARTS[session.preset])
        for multiplier in MULTIPLIERS:
            gd, adam = GradientDescent(ScaledSteps(BASE_STEP, multiplier)), Adam(ScaledSteps(ADAM_STEP, multiplier))
            record(session, "gd", gd, instances, multiplier=multiplier)
            record(session, "adam", adam, instances, multiplier=multiplier)
        for method, name in LEARNED.items():
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
    """How many eigenvalues of A exceed 1 and 0.5, as the caption of Figure 4 has it, and all of them."""
    eigenvalues = torch.linalg.eigvalsh(mirror.matrix.detach())
    for level in (1.0, 0.5):
        session.record(method, 10, "eigenvalues_above", float((eigenvalues > level).sum()), level=level)
    for index, eigenvalue in enumerate(eigenvalues):
        session.record(method, 10, "matrix_eigenvalue", float(eigenvalue), index=index)
