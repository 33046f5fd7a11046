"""Estimators for scikit-learn: the lasso, the linear SVM and logistic regression, solved to a proven gap.

The estimators have the objectives and shapes of scikit-learn. In addition, they accept a `solver`: a name in the zoo or
a solver that `lmd.learn` returned. After `fit`, `gap_` bounds how far the objective is above its minimum.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from lmd import problems
from lmd.core.checks import check_positive
from lmd.guarantees.certify import run
from lmd.problems.base import Problem
from lmd.solvers.base import Solver
from lmd.solvers.result import Result, Status
from lmd.zoo.solve import find, solve

Array = np.ndarray[Any, np.dtype[Any]]
Given = Solver[Any] | str | None  # a solver, the name of a solver, or None to let `lmd.solve` choose
DTYPES = (np.float64, np.float32)


def _solved(problem: Problem, x0: Tensor, solver: Given, tolerance: float) -> Result:
    """Solve to the tolerance or, if a solver is given, run the number of iterations that it was trained for."""
    check_positive("tolerance", tolerance)
    if solver is None:
        found = solve(problem, tolerance, x0=x0)
        if any(status is not Status.TOLERANCE_REACHED for status in found.status):
            said = f"not proven to {tolerance:.1e} of the minimum, see gap_; features of one scale may help"
            warnings.warn(said, ConvergenceWarning, stacklevel=3)
        return found
    chosen = find(solver) if isinstance(solver, str) else copy.deepcopy(solver)
    return run(chosen.to(x0.dtype), problem, x0, record=False)


class _Linear(BaseEstimator):
    """The base class of the estimators, whose scores are linear in the features."""

    def _keep(self, coefficients: Tensor, intercepts: Array | float, result: Result, scale: float = 1.0) -> None:
        certificate = result.certificate
        bounds = result.values if certificate is None else certificate.bound
        self.coef_, self.intercept_ = coefficients.numpy(), intercepts
        self.n_iter_ = int(result.iterations.max())
        self.gap_ = scale * float(bounds.sum())  # several classes: the gap of the sum of their objectives

    def _scores(self, X: Any) -> Array:
        check_is_fitted(self)
        rows = validate_data(self, X, dtype=DTYPES, reset=False)
        scores: Array = rows @ np.atleast_2d(self.coef_).T + self.intercept_
        return scores.ravel() if scores.shape[1] == 1 else scores


class Lasso(RegressorMixin, _Linear):
    """Minimise 1/(2m) ||y - Xw - c||^2 + alpha ||w||_1 like `sklearn.linear_model.Lasso`, for X `(m, d)` and y `(m,)`.

    Args:
        alpha: The weight of the l1 norm, positive.
        fit_intercept: Whether to fit the intercept c.
        tolerance: The relative gap to be proven.
        solver: A solver or its name, run for its trained number of iterations; None lets `lmd.solve` choose a solver.

    >>> import numpy as np
    >>> found = Lasso(alpha=0.1, fit_intercept=False).fit(np.eye(2), [3.0, 0.1])
    >>> found.coef_.round(3).tolist()
    [2.8, 0.0]
    """

    def __init__(
        self, alpha: float = 1.0, *, fit_intercept: bool = True, tolerance: float = 1e-6, solver: Given = None
    ) -> None:
        self.alpha, self.fit_intercept, self.tolerance, self.solver = alpha, fit_intercept, tolerance, solver

    def fit(self, X: Any, y: Any) -> Lasso:
        X, y = validate_data(self, X, y, dtype=DTYPES, y_numeric=True)
        y = y.astype(X.dtype)
        centre, mean = (X.mean(axis=0), y.mean()) if self.fit_intercept else (np.zeros_like(X[0]), y.dtype.type(0))
        A, b = (torch.from_numpy(np.ascontiguousarray(each)) for each in (X - centre, y - mean))
        weight = len(X) * check_positive("alpha", float(self.alpha))
        result = _solved(problems.Lasso(A, b[None], weight), A.new_zeros(1, A.shape[1]), self.solver, self.tolerance)
        coefficients = result.x[0]
        self._keep(coefficients, float(mean - centre @ coefficients.numpy()), result, 1 / len(X))
        return self

    def predict(self, X: Any) -> Array:
        return self._scores(X)


class _Classifier(ClassifierMixin, _Linear):
    """The base class of the classifiers; it replaces labels by numbers."""

    def _numbered(self, X: Any, y: Any) -> tuple[Tensor, Tensor]:
        X, y = validate_data(self, X, y, dtype=DTYPES)
        check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y: one class, {self.classes_[0]!r}; accepted: two classes or more")
        return torch.from_numpy(np.ascontiguousarray(X)), torch.from_numpy(numbers)

    def decision_function(self, X: Any) -> Array:
        """Return scores `(m, classes)`; for two classes, scores `(m,)` of the second class."""
        return self._scores(X)

    def predict(self, X: Any) -> Array:
        scores = self._scores(X)
        chosen = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        labels: Array = self.classes_[chosen]
        return labels


class LinearSVC(_Classifier):
    """Minimise 1/2 ||w||^2 + C sum_i max(0, 1 - y_i (w'x_i + c)) over w and c, like `SVC(kernel="linear")` in sklearn.

    The intercept is not penalised. More than two classes give a batch of problems, each class against the rest.

    Args:
        C: The weight of the losses, positive.
        tolerance: The relative gap to be proven.
        solver: As for `Lasso`.
    """

    def __init__(self, C: float = 1.0, *, tolerance: float = 1e-6, solver: Given = None) -> None:
        self.C, self.tolerance, self.solver = C, tolerance, solver

    def fit(self, X: Any, y: Any) -> LinearSVC:
        features, numbers = self._numbered(X, y)
        positive = range(len(self.classes_)) if len(self.classes_) > 2 else (1,)
        signs = torch.stack([torch.where(numbers == each, 1, -1) for each in positive])
        problem = problems.SVM(features.expand(len(signs), -1, -1), signs, float(self.C))
        start = features.new_zeros(len(signs), features.shape[1] + 1)
        result = _solved(problem, start, self.solver, self.tolerance)
        self._keep(result.x[:, :-1], result.x[:, -1].numpy(), result)
        return self


class LogisticRegression(_Classifier):
    """Minimise C sum_i loss(W x_i, y_i) + 1/2 ||W||^2 with softmax loss, like sklearn's class of the same name.

    The intercept is the coefficient of a constant feature and is penalised, as in liblinear. With two classes there is
    one row of coefficients, otherwise one per class.

    Args:
        C: The weight of the losses, positive.
        fit_intercept: Whether to fit an intercept.
        tolerance: The relative gap to be proven.
        solver: As for `Lasso`.
    """

    def __init__(
        self, C: float = 1.0, *, fit_intercept: bool = True, tolerance: float = 1e-6, solver: Given = None
    ) -> None:
        self.C, self.fit_intercept, self.tolerance, self.solver = C, fit_intercept, tolerance, solver

    def fit(self, X: Any, y: Any) -> LogisticRegression:
        features, numbers = self._numbered(X, y)
        if self.fit_intercept:
            features = torch.cat([features, torch.ones_like(features[:, :1])], dim=1)
        classes, binary = len(self.classes_), len(self.classes_) == 2
        each = check_positive("C", float(self.C)) * len(features)
        # For two classes, the squares of the rows w/2 and -w/2 add up to ||w||^2 / 2.
        problem = problems.LinearClassifier(features, numbers, classes, ridge=(1 + binary) / each)
        start = features.new_zeros(1, classes * features.shape[1])
        result = _solved(problem, start, self.solver, self.tolerance)
        rows = result.x.view(classes, -1)
        rows = (rows[1] - rows[0])[None] if binary else rows
        intercepts = rows[:, -1].numpy() if self.fit_intercept else np.zeros(len(rows), rows.numpy().dtype)
        self._keep(rows[:, :-1] if self.fit_intercept else rows, intercepts, result, each)
        return self

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of each class `(m, classes)`."""
        scores = torch.from_numpy(np.ascontiguousarray(self._scores(X)))
        both = torch.stack([-scores / 2, scores / 2], dim=1) if scores.ndim == 1 else scores
        found: Array = torch.softmax(both, dim=1).numpy()
        return found
