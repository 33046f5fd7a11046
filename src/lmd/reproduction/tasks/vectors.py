"""Problems of vectors: least squares, the lasso, quadratic programs, support vector machines, linear classifiers."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmd import problems, solvers
from lmd.mirrors import DensePair, Mirror, OneLayer, Quadratic
from lmd.reproduction.tasks import common
from lmd.reproduction.tasks.common import WEAK, SolvedFamily, mean_optimum
from lmd.reproduction.tasks.task import (
    COUNTS,
    EXPERIMENTS,
    TOLERANCES,
    Call,
    Contest,
    Digits,
    Drawn,
    HeldOut,
    Peer,
    Recipe,
    Task,
    stacked,
)
from lmd.solvers.classical.interior_point import InteriorPoint
from lmd.solvers.initialisers import MeanInitialiser
from lmd.solvers.learned.gradient import LearnedBlockNewton
from lmd.solvers.wrappers import Sequential, WithInitialiser

PLANE = Drawn("right-hand sides and starts standard normal", arrays=("W",))


def plane_family(preset: str) -> problems.LeastSquaresFamily:
    """Return the family, which is the same for all presets."""
    return problems.LeastSquaresFamily()


def _plane_solver(mirror: Mirror) -> solvers.Solver[Any]:
    return solvers.LearnedMirrorDescent(mirror, iterations=10, initial_step=0.1, interval=(0.05, 0.5)).double()


def _plane_quadratic(seed: int) -> solvers.Solver[Any]:
    """Return the mirror with the paper's initialisation: the identity plus a small random diagonal."""
    noise = 0.001**0.5 * torch.randn(2, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)
    return _plane_solver(Quadratic.from_matrix(torch.diag(1 + noise)))


def _plane_one_layer(seed: int) -> solvers.Solver[Any]:
    return _plane_solver(OneLayer.random(2, torch.Generator().manual_seed(seed)))


_PLANE_SETTINGS = {
    "quick": {"updates": 300, "batch": 100, "learning_rate": 5e-2, "schedule": "cosine"},
    "standard": {"updates": 3000, "batch": 1000, "learning_rate": 3e-2, "schedule": "cosine"},
    "paper": {"updates": 20_000, "batch": 1000, "learning_rate": 1e-3, "schedule": "cosine"},
}


def _plane_recipe(form: str, solver: Any) -> Recipe:
    return Recipe(
        form=form,
        iterations=10,
        title=f"adaptive LMD with a {form} potential, for ||Wx - b||^2 in the plane",
        solver=solver,
        family=plane_family,
        source=PLANE,
        settings=_PLANE_SETTINGS,
    )


LEAST_SQUARES = Task(
    name="least-squares",
    title="least squares in the plane",
    recipes=(_plane_recipe("quadratic", _plane_quadratic), _plane_recipe("one-layer", _plane_one_layer)),
)


def _lasso_family(preset: str) -> problems.Family:
    return common.solved(problems.LassoFamily(), preset, solvers.PDHG(0.5), iterations=2000)


def make_lasso(images: Tensor, noise: float, generator: torch.Generator) -> problems.Lasso:
    """Return as many regressions as there are images."""
    return problems.LassoFamily(noise=noise).sample(len(images), generator)[0]


def _coordinate_descent(problem: Any) -> Call:
    """Run scikit-learn's coordinate descent with tolerance 0, so that it does not stop early."""
    from sklearn.linear_model import Lasso as TheirLasso

    return _fit_lassos(TheirLasso, problem, lambda count: {"tol": 0.0, "max_iter": count, "copy_X": False})


def _celer(problem: Any) -> Call:
    """Run celer; its tolerance bounds the duality gap relative to ||b||^2."""
    from celer import Lasso as TheirLasso

    return _fit_lassos(TheirLasso, problem, lambda tolerance: {"tol": tolerance, "max_iter": 100})


def _skglm(problem: Any) -> Call:
    """Run skglm; its tolerance bounds the distance of the subdifferential to 0."""
    from skglm import Lasso as TheirLasso

    return _fit_lassos(TheirLasso, problem, lambda tolerance: {"tol": tolerance, "max_iter": 100})


def _fit_lassos(estimator: Any, problem: Any, options: Callable[[Any], dict[str, Any]]) -> Call:
    """Fit one estimator per instance. Their loss is a mean over the m rows of A, so their weight is ours over m."""
    A = np.asfortranarray(problem.A.double().numpy())
    rows = [(b.double().numpy(), float(w) / len(A)) for b, w in zip(problem.b, problem.weight, strict=True)]

    def call(rung: Any) -> list[Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about missing convergence
            return [estimator(w, fit_intercept=False, **options(rung)).fit(A, b).coef_ for b, w in rows]

    return call


LASSO = Task(
    name="lasso",
    title="the lasso, sparse linear regression",
    recipes=(
        Recipe(
            iterations=10,
            title="learned saddle mirror descent of 10 iterations, steps and momenta alone, for lassos with one matrix",
            solver=lambda seed: solvers.LearnedPDHG(10, tau=0.5),
            family=_lasso_family,
            source=Drawn("random sparse regressions", arrays=("A",)),
            settings=common.training("gap", 2e-2, updates=1500, batch=10),
            weak=WEAK + "Trained for one matrix, the one of LassoFamily(): for another one, train again, in a minute.",
        ),
    ),
    contest=Contest(
        make_lasso,
        steps=0.1,
        tau=0.5,
        peers=(
            Peer("scikit-learn", "sklearn", COUNTS, _coordinate_descent, stacked),
            Peer("celer", "celer", TOLERANCES, _celer, stacked),
            Peer("skglm", "skglm", TOLERANCES, _skglm, stacked),
        ),
        sized=False,
    ),
)


def make_control(images: Tensor, noise: float, generator: torch.Generator) -> Any:
    """Return as many control problems as there are images."""
    return problems.ControlFamily().sample(len(images), generator)[0]


def _osqp(problem: Any) -> Call:
    """Run OSQP on one instance after the other with warm starts; answers are clipped to the box."""
    import osqp
    from scipy import sparse

    P, q = (each.double().numpy() for each in problem.f.quadratic)
    low, high = (end[0].double().numpy() for end in (problem.g.low, problem.g.high))
    box = sparse.identity(len(low), format="csc"), low, high

    def call(tolerance: float) -> list[Any]:
        solver = osqp.OSQP()
        options: dict[str, Any] = {"eps_abs": tolerance, "eps_rel": tolerance, "max_iter": 10_000, "verbose": False}
        solver.setup(sparse.triu(sparse.csc_matrix(P), format="csc"), q[0], *box, **options)
        answers = []
        for each in q:
            solver.update(q=each)
            answers.append(np.clip(solver.solve(raise_error=False).x, low, high))
        return answers

    return call


CONTROL = Task(
    name="control",
    title="quadratic programs of receding-horizon control",
    contest=Contest(
        make_control,
        noise=(0,),
        steps=0.0,
        tau=0.0,
        peers=(Peer("osqp", "osqp", TOLERANCES, _osqp, stacked),),
        kept=False,
        sized=False,
    ),
)


SVM_DIGITS = Digits(problems.SVMFamily, mnist=1000, digits=100)
STEPS = (1e-3, 1e-1)


def dense_pair(dimension: int, width: int, backward_width: int, scale: float, seed: int) -> Mirror:
    """The networks of the paper's dense pairs."""
    options: dict[str, Any] = {"backward": "gradient", "backward_width": backward_width, "activation": "leaky"}
    return DensePair(dimension, width, 2, scale=scale, seed=seed, **options)


def _svm_solver(mirror: Mirror, extension: str = "decay") -> solvers.Solver[Any]:
    return solvers.LearnedMirrorDescent(mirror, iterations=10, initial_step=0.01, interval=STEPS, extension=extension)


def _quadratic(seed: int) -> solvers.Solver[Any]:
    return _svm_solver(Quadratic.from_matrix(10 * torch.eye(51)))


def _one_layer(seed: int) -> solvers.Solver[Any]:
    """Return a one-layer mirror. Weights of 20 make its range wide enough for the gradients of a thousand hinges."""
    return _svm_solver(OneLayer(51, weight=torch.full((51,), 20.0)))


def _published_one_layer(seed: int) -> solvers.Solver[Any]:
    """Return the mirror with the paper's initialisation, whose range is so narrow that most steps are clipped."""
    return _svm_solver(OneLayer.random(51, torch.Generator().manual_seed(seed)))


def _svm_pair(seed: int) -> solvers.Solver[Any]:
    """Return a pair with a scale of 30, which makes steps of 0.01 suit the gradients of a thousand hinges."""
    return solvers.CorrectedMirrorDescent(
        dense_pair(51, 64, 96, 30.0, seed), solvers.LearnedSteps(10, 0.01, STEPS, "decay")
    )


def _published(seed: int) -> solvers.Solver[Any]:
    """Return the networks of `_svm_pair` in the paper's algorithm, without corrections; the last step is repeated."""
    return _svm_solver(dense_pair(51, 64, 96, 30.0, seed), "last")


def _interior(seed: int) -> solvers.Solver[Any]:
    """Return a learned interior-point solver that starts at the mean of a few optima."""
    solver = solvers.LearnedInteriorPoint(51)
    with torch.no_grad():
        solver.guess.copy_(mean_optimum(SVM_DIGITS.train("standard"), seed))
    return solver


def _solved(preset: str) -> problems.Family:
    """Return a family of data sets that are drawn once, with their optima."""
    count = 4 if preset == "quick" else 20
    return SolvedFamily(SVM_DIGITS.train(preset, subsets=count), 10 * count, InteriorPoint(), iterations=30)


_INTERIOR: dict[str, dict[str, Any]] = {
    preset: {
        **{"updates": updates, "batch": batch, "validate_every": every, "objective": "gap"},
        **{"learning_rate": 1e-2, "schedule": "cosine", "clip_gradient": 100.0, "validation_batch": 20},
    }
    for preset, updates, batch, every in (("quick", 20, 4, 2), ("standard", 100, 8, 20))
}
_CLIPPED: dict[str, Any] = {"schedule": "cosine", "clip_gradient": 1e3}
_CLOSED_FORM: dict[str, dict[str, Any]] = {
    "quick": {"updates": 60, "batch": 50, "learning_rate": 3e-2, **_CLIPPED},
    "standard": {"updates": 3000, "batch": 500, "learning_rate": 3e-2, **_CLIPPED},
    "paper": {"updates": 10_000, "batch": 2000, "learning_rate": 1e-3, "clip_gradient": 1e3},
}
_PAIRS: dict[str, dict[str, Any]] = {
    "quick": {"updates": 60, "batch": 50, "learning_rate": 1e-2, **_CLIPPED},
    "standard": {"updates": 1500, "batch": 200, "learning_rate": 3e-3, **_CLIPPED},
    "paper": {"updates": 10_000, "batch": 2000, "learning_rate": 1e-3, "clip_gradient": 1e3, "consistency_at": "all"},
}


def make_svm(images: Tensor, noise: float, generator: torch.Generator) -> Any:
    """Return as many support vector machines as there are images, each on another subset of the test fold."""
    family = SVM_DIGITS.held_out(SVM_DIGITS.train("standard"), HeldOut("standard", subsets=len(images)))
    return family.sample(len(images), generator)[0]


def _fit_svms(estimator: Callable[[Any], Any], problem: Any) -> Call:
    """Fit one estimator per instance; x is the weights and the bias."""
    sets = list(zip(problem.features.double().numpy(), problem.labels.numpy(), strict=True))
    chosen = [sets[k] for k in problem.subset.tolist()]

    def call(tolerance: Any) -> list[Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about missing convergence
            models = [estimator(tolerance).fit(*pair) for pair in chosen]
        return [np.append(model.coef_[0], model.intercept_) for model in models]

    return call


def _libsvm(problem: Any) -> Call:
    from sklearn.svm import SVC

    return _fit_svms(lambda tolerance: SVC(kernel="linear", C=problem.C, tol=tolerance), problem)


def _liblinear(problem: Any) -> Call:
    """Fit scikit-learn's LinearSVC (dual coordinate descent). It also penalises the bias, a hundredth as much here."""
    from sklearn.svm import LinearSVC

    options: dict[str, Any] = {"loss": "hinge", "intercept_scaling": 10.0, "max_iter": 100_000, "random_state": 0}
    return _fit_svms(lambda tolerance: LinearSVC(C=problem.C, tol=tolerance, **options), problem)


_FOR = "for SVMs on 50 features"
_FORMS: dict[str, tuple[str, Any, Any]] = {
    "quadratic": (f"adaptive LMD with a quadratic potential, {_FOR}", _quadratic, _CLOSED_FORM),
    "one-layer": (f"adaptive LMD with a one-layer potential, {_FOR}", _one_layer, _CLOSED_FORM),
    "one-layer-published": ("one-layer, from the paper's start, which has to clip", _published_one_layer, _CLOSED_FORM),
    "pair": (f"corrected adaptive LMD with a learned mirror pair, {_FOR}", _svm_pair, _PAIRS),
    "published": ("the paper's adaptive LMD with the networks of the pair", _published, _PAIRS),
}

SVM = Task(
    name="svm",
    title="support vector machines on features of digits",
    recipes=(
        *(
            Recipe(
                form=form,
                iterations=10,
                title=title,
                solver=solver,
                family=SVM_DIGITS.train,
                source=SVM_DIGITS,
                settings=settings,
            )
            for form, (title, solver, settings) in _FORMS.items()
        ),
        common.exact_recipe_for_vectors("SVMs on 50 features", common.exact_svm, SVM_DIGITS, common.EXACT_SVM),
        Recipe(
            form="interior",
            iterations=10,
            title=f"interior-point steps from a learned start, {_FOR}",
            solver=_interior,
            family=_solved,
            source=SVM_DIGITS,
            settings=_INTERIOR,
        ),
    ),
    contest=Contest(
        make_svm,
        noise=(0,),
        steps=1e-4,
        peers=(
            Peer("libsvm", "sklearn", TOLERANCES, _libsvm, stacked, EXPERIMENTS),
            Peer("liblinear", "sklearn", TOLERANCES, _liblinear, stacked, EXPERIMENTS),
        ),
        sized=False,
    ),
)


CLASSIFIER_DIGITS = Digits(problems.LinearClassifierFamily, mnist=2000, digits=300)


def _classifier_pair(seed: int) -> solvers.Solver[Any]:
    return solvers.CorrectedMirrorDescent(
        dense_pair(500, 48, 48, 0.2, seed), solvers.LearnedSteps(10, 0.01, STEPS, "last")
    )


def _classifier_newton(seed: int) -> solvers.Solver[Any]:
    """Return Newton's method from the mean of a few optima, found with a small ridge: separable data have no optimum.

    After the second step, steps start longer, for data that are then separated. The learning rate is small, because
    three of four hundred instances diverged with 3e-2.
    """
    start, solver = MeanInitialiser([500]), LearnedBlockNewton()
    start.fit_(start.mean[None], mean_optimum(CLASSIFIER_DIGITS.train("standard", ridge=1e-4), seed).float()[None])
    with torch.no_grad():
        solver.numbers[2:, 0] = math.log(2)
        solver.numbers[2, 0] = math.log(1.5)
    return Sequential(WithInitialiser(solver, start), solvers.LBFGS())


_CAREFUL: dict[str, Any] = {"learning_rate": 3e-3, "schedule": "cosine", "clip_gradient": 1.0}
_CLASSIFIER_SETTINGS: dict[str, dict[str, Any]] = {
    "quick": {"updates": 100, "batch": 5, "learning_rate": 2e-2, "schedule": "cosine", "consistency_weight": 0.01},
    "standard": {**_CAREFUL, "updates": 1500, "batch": 20, "value_weights": "last", "consistency_weight": 1e-4},
    "paper": {"updates": 10_000, "batch": 2000, "learning_rate": 1e-3, "consistency_at": "all"},
}
_LATER: dict[str, Any] = {**_CAREFUL, "value_weights": (1.0, 10.0, *(100.0,) * 8)}
_NEWTON: dict[str, dict[str, Any]] = {
    "quick": {**_LATER, "updates": 2, "batch": 16, "validation_batch": 16},
    "standard": {**_LATER, "updates": 60, "batch": 16, "validation_batch": 48, "validate_every": 10},
}

LINEAR_CLASSIFIER = Task(
    name="linear-classifier",
    title="linear classifiers on features of digits",
    recipes=(
        Recipe(
            iterations=10,
            title="corrected adaptive LMD with a learned mirror pair, for linear classifiers on 50 features",
            solver=_classifier_pair,
            family=CLASSIFIER_DIGITS.train,
            source=CLASSIFIER_DIGITS,
            settings=_CLASSIFIER_SETTINGS,
        ),
        common.exact_recipe_for_vectors(
            "linear classifiers of 10 classes", common.exact_classifier, CLASSIFIER_DIGITS, common.EXACT_CLASSIFIER
        ),
        Recipe(
            form="newton",
            iterations=10,
            title="Newton's steps class by class from a learned start, for linear classifiers of 10 classes",
            solver=_classifier_newton,
            family=partial(CLASSIFIER_DIGITS.train, subsets=16),
            source=CLASSIFIER_DIGITS,
            settings=_NEWTON,
        ),
    ),
)
