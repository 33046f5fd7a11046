"""The estimators: scikit-learn's own checks, its own answers, and solvers that are given."""

import numpy as np
import pytest
from sklearn import linear_model, svm
from sklearn.base import clone
from sklearn.datasets import load_digits, make_classification, make_regression
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import check_estimator

import lmd
from lmd.compat.sklearn import Lasso, LinearSVC, LogisticRegression
from lmd.solvers.classical.interior_point import InteriorPoint

ESTIMATORS = [Lasso, LinearSVC, LogisticRegression]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_scikit_learn_accepts_it(estimator):
    check_estimator(estimator())


@pytest.mark.parametrize("intercept", [True, False])
def test_the_lasso_is_that_of_scikit_learn(intercept):
    X, y = make_regression(60, 20, n_informative=5, noise=2.0, random_state=0)
    theirs = linear_model.Lasso(1.0, fit_intercept=intercept, tol=1e-10).fit(X, y)
    ours = Lasso(1.0, fit_intercept=intercept, tolerance=1e-10).fit(X, y)
    assert np.allclose(ours.coef_, theirs.coef_, atol=1e-3) and np.isclose(
        ours.intercept_, theirs.intercept_, atol=1e-3
    )

    def value(model):
        return np.square(y - model.predict(X)).mean() / 2 + np.abs(model.coef_).sum()

    assert value(ours) - value(theirs) <= ours.gap_ <= 1e-9 * value(theirs)


@pytest.mark.parametrize("classes", [2, 3])
def test_the_classifiers_are_those_of_scikit_learn(classes):
    X, y = make_classification(120, 6, n_informative=5, n_redundant=0, n_classes=classes, random_state=1)
    labels = np.array(["ash", "birch", "cedar"])[y]
    machine = LinearSVC(tolerance=1e-8).fit(X, labels)
    theirs = svm.SVC(kernel="linear", tol=1e-8).fit(X, labels == machine.classes_[-1])
    assert np.allclose(machine.coef_[-1], theirs.coef_[0], atol=1e-3)
    logistic = LogisticRegression(0.5, fit_intercept=False, tolerance=1e-10).fit(X, labels)
    their_logistic = linear_model.LogisticRegression(C=0.5, fit_intercept=False, tol=1e-10).fit(X, labels)
    assert np.allclose(logistic.coef_, their_logistic.coef_, atol=1e-4)
    assert np.allclose(logistic.predict_proba(X), their_logistic.predict_proba(X), atol=1e-4)
    assert 0 <= logistic.gap_ < 1e-4 and 0 <= machine.gap_ < 1e-4


def test_a_learned_solver_by_its_name_and_as_it_is():
    family = lmd.problems.LassoFamily()
    A = family.A.numpy()
    rng = np.random.default_rng(0)
    y = (A @ np.where(np.arange(200) < 5, 1.0, 0.0) + 0.01 * rng.standard_normal(100)).astype(np.float32)
    alpha = 0.1 * np.abs(A.T @ y).max() / len(A)
    exact = Lasso(alpha, fit_intercept=False).fit(A, y)
    for solver in ("lasso-10", lmd.zoo.load("lasso-10")):
        learned = clone(Lasso(alpha, fit_intercept=False, solver=solver)).fit(A, y)
        value, least = (
            np.square(y - m.predict(A)).mean() / 2 + alpha * np.abs(m.coef_).sum() for m in (learned, exact)
        )
        assert learned.n_iter_ == 10 and learned.coef_.dtype == np.float32
        assert value - least <= learned.gap_ * (1 + 1e-4) and learned.gap_ < 0.2 * least


def test_a_learned_svm_on_digits_and_a_grid_search():
    X, y = load_digits(return_X_y=True)
    X, y = X[:200] / 16, y[:200] % 2
    machine = LinearSVC(solver=InteriorPoint()).fit(X, y)
    assert machine.score(X, y) > 0.9
    search = GridSearchCV(LogisticRegression(tolerance=1e-3), {"C": [1e-6, 1.0]}, cv=2).fit(X, y)
    assert search.best_params_["C"] == 1.0


@pytest.mark.parametrize(
    ("estimator", "words"),
    [(Lasso(alpha=0.0), "alpha"), (LinearSVC(C=-1.0), "C:"), (LogisticRegression(tolerance=0.0), "tolerance")],
)
def test_settings_that_mean_nothing_are_refused(estimator, words):
    with pytest.raises(lmd.InputError, match=words):
        estimator.fit(np.array([[0.0], [1.0]]), [0, 1])


def test_what_is_not_proven_is_said():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 6)) * np.logspace(-5, 5, 6)
    with pytest.warns(ConvergenceWarning, match="gap_"):
        found = LogisticRegression(C=100.0, tolerance=1e-12).fit(X, rng.integers(0, 2, 60))
    assert found.gap_ > 0
