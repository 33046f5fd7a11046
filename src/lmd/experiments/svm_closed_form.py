"""Figures 4 and 5: learned mirrors with closed-form inverses, training support vector machines."""

from __future__ import annotations

import torch

from lmd import zoo
from lmd.experiments.base import MULTIPLIERS, Experiment, Session
from lmd.experiments.linear_models import ADAM_STEP, BASE_STEP, draw_comparison, features_for, make_instances, record
from lmd.mirrors import Quadratic
from lmd.problems import SVMFamily
from lmd.solvers import Adam, GradientDescent, MirrorDescent, ScaledSteps
from lmd.zoo.linear_recipes import SVM_SUBSET

STARTS = {"quick": 5, "standard": 20, "paper": 20}
SUBSETS = {"quick": 2, "standard": 10, "paper": 10}
LEARNED = {
    "lmd-quadratic": "svm-quadratic",
    "lmd-one-layer": "svm-one-layer",
    "lmd-one-layer-published": "svm-one-layer-published",
}


class SVMClosedForm(Experiment):
    """Quadratic and one-layer LMD against GD and Adam on the SVM of two classes of digits."""

    name = "svm-closed-form"
    title = "Support vector machines with mirrors that have a closed-form inverse"
    paper = "Figures 4 and 5"
    solvers = tuple(LEARNED.values())

    def run(self, session: Session) -> None:
        features = features_for(session.preset)
        subset = SVM_SUBSET[features.data_name]
        train = SVMFamily(features.train_features, features.train_labels, subset=subset)
        test = SVMFamily(features.test_features, features.test_labels, subset=subset, subsets=SUBSETS[session.preset])
        session.facts.update(data=features.data_name, feature_accuracy=features.accuracy, base_step=BASE_STEP)
        instances = make_instances(session, train, test, STARTS[session.preset])
        for multiplier in MULTIPLIERS:
            gd, adam = GradientDescent(ScaledSteps(BASE_STEP, multiplier)), Adam(ScaledSteps(ADAM_STEP, multiplier))
            record(session, "gd", gd, instances, multiplier=multiplier)
            record(session, "adam", adam, instances, multiplier=multiplier)
        for method, name in LEARNED.items():
            learned = zoo.obtain(name, session.preset, retrain=session.retrain, progress=session.progress)
            assert isinstance(learned, MirrorDescent)
            session.facts[f"{method} comes from"] = zoo.origin(name, session.preset, retrain=session.retrain)
            for multiplier in MULTIPLIERS:
                fixed = learned.with_steps(ScaledSteps(BASE_STEP, multiplier))
                record(session, method, fixed, instances, multiplier=multiplier)
            record(session, f"{method}-adaptive", learned, instances)
            if isinstance(learned.mirror, Quadratic):
                self._eigenvalues(session, method, learned.mirror)
            draw_comparison(
                session,
                f"figure-{'4' if method == 'lmd-quadratic' else '5'}-{name.removeprefix('svm-')}",
                ("loss", "relative_gap", "accuracy"),
                ("gd", "adam", method, f"{method}-adaptive"),
                f"SVM on features of {features.data_name}: loss, relative gap and test accuracy of {method}, "
                "gradient descent and Adam, against iterations and time. The grey line ends the trained iterations.",
            )

    def _eigenvalues(self, session: Session, method: str, mirror: Quadratic) -> None:
        """How many eigenvalues of A exceed 1 and 0.5, as the caption of Figure 4 has it, and all of them."""
        eigenvalues = torch.linalg.eigvalsh(mirror.matrix.detach())
        for level in (1.0, 0.5):
            session.record(method, 10, "eigenvalues_above", float((eigenvalues > level).sum()), level=level)
        for index, eigenvalue in enumerate(eigenvalues):
            session.record(method, 10, "matrix_eigenvalue", float(eigenvalue), index=index)
