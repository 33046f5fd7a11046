"""Other packages behind one interface: prepare(sample, tolerance) returns a function from an instance's number to x.

Preparing converts the data, which is not timed; setting a solver up, updating and solving are. Solvers that can be
updated and started from the last answer are.
"""

from __future__ import annotations

import importlib.util
import itertools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import sparse

from .base import Array, Sample, clarabel_data, clarabel_solver

Solve = Callable[[int], Array]
Prepare = Callable[[Sample, float], Solve]

MAX_ITERATIONS = 100_000


def available(sample: Sample) -> dict[str, Prepare]:
    """Return the peers that are installed and that can solve the sample, by name."""
    found: dict[str, tuple[str, Prepare]] = {}
    if sample.programs:
        found["Clarabel"] = "clarabel", by_clarabel
        if all(program.G is None for program in sample.programs):
            found |= PROGRAMS
            if not any(program.P.any() for program in sample.programs):
                found |= {"HiGHS": ("highspy", by_highs), "PDLP": ("ortools", by_pdlp)}
    found |= SPECIAL.get(sample.kind, {})
    return {name: prepare for name, (package, prepare) in found.items() if importlib.util.find_spec(package)}


def by_clarabel(sample: Sample, tolerance: float) -> Solve:
    made = [clarabel_data(program) for program in sample.programs]
    return lambda i: np.array(clarabel_solver(*made[i], tolerance).solve().x)[: sample.size]


def _updated(found: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return the arrays of each instance; None stands for one that is the same as that of the instance before."""
    changes = [found[0]]
    for before, now in itertools.pairwise(found):
        changes.append(tuple(None if _equal(a, b) else b for a, b in zip(before, now, strict=True)))
    return changes


def _equal(a: Any, b: Any) -> bool:
    if sparse.issparse(a):
        return a.shape == b.shape and a.nnz == b.nnz and np.array_equal(a.indices, b.indices) and _equal(a.data, b.data)
    return (a is None and b is None) or np.array_equal(a, b)


def _pattern(matrices: list[Array]) -> Callable[[Array], Any]:
    """Return a function to sparse matrices that all have the entries that one of these has."""
    some = sparse.csc_matrix(np.any([matrix != 0 for matrix in matrices], axis=0))

    def filled(matrix: Array) -> Any:
        rows, columns = some.indices, np.repeat(np.arange(some.shape[1]), np.diff(some.indptr))
        return sparse.csc_matrix((matrix[rows, columns], rows.copy(), some.indptr.copy()), shape=some.shape)

    return filled


def by_osqp(sample: Sample, tolerance: float) -> Solve:
    import osqp

    form = _pattern([np.triu(each.P) for each in sample.programs])
    rows = _pattern([each.stacked[0] for each in sample.programs])
    changes = _updated(
        [(form(np.triu(each.P)), each.q, rows(each.stacked[0]), *each.stacked[1:]) for each in sample.programs]
    )
    solver = osqp.OSQP()
    options = {"eps_abs": tolerance, "eps_rel": tolerance, "max_iter": MAX_ITERATIONS, "polishing": True}

    def solve(i: int) -> Array:
        if i == 0:
            solver.setup(*changes[0], verbose=False, **options)
        else:
            P, q, A, l, u = changes[i]
            more = {"Px": None if P is None else P.data, "Ax": None if A is None else A.data, "q": q, "l": l, "u": u}
            solver.update(**{name: each for name, each in more.items() if each is not None})
        return np.array(solver.solve(raise_error=False).x)[: sample.size]

    return solve


def by_daqp(sample: Sample, tolerance: float) -> Solve:
    import daqp

    def arrays(program: Any) -> tuple[Any, ...]:
        (A, l, u), (low, high) = program.rows, program.bounds
        big = 1e30
        lower, upper = np.clip(np.append(low, l), -big, big), np.clip(np.append(high, u), -big, big)
        A = np.ascontiguousarray(A if len(A) else np.zeros((0, len(low))))
        return np.ascontiguousarray(program.P), program.q, A, upper, lower

    changes, model = _updated([arrays(each) for each in sample.programs]), daqp.Model()
    sense = (changes[0][3] == changes[0][4]).astype(np.int32) * 5
    least = min(np.linalg.eigvalsh(program.P)[0] for program in sample.programs)
    options = {"primal_tol": tolerance, "dual_tol": tolerance, "iter_limit": 10_000}
    if least < 1e-9:
        options["eps_prox"] = -1.0

    def solve(i: int) -> Array:
        if i == 0:
            model.settings = options
            model.setup(*changes[0], sense=sense)
        else:
            H, f, A, upper, lower = changes[i]
            model.update(H=H, f=f, A=A, bupper=upper, blower=lower)
        return np.array(model.solve()[0])[: sample.size]

    return solve


def _two_kinds(program: Any) -> tuple[Any, ...]:
    """Return P, q, equations A and b, inequalities G with both ends, and bounds."""
    A, l, u = program.rows
    equal = l == u
    return program.P, program.q, A[equal], u[equal], A[~equal], l[~equal], u[~equal], *program.bounds


def by_piqp(sample: Sample, tolerance: float) -> Solve:
    import piqp

    def arrays(program: Any) -> tuple[Any, ...]:
        P, q, A, b, G, l, u, low, high = _two_kinds(program)
        P, A, G = (np.asfortranarray(each) for each in (P, A, G))
        return P, q, A, b, G, l, u, low, high

    changes, solver = _updated([arrays(each) for each in sample.programs]), piqp.DenseSolver()
    solver.settings.eps_abs = solver.settings.eps_rel = tolerance
    names = "P", "c", "A", "b", "G", "h_l", "h_u", "x_l", "x_u"

    def solve(i: int) -> Array:
        given = {name: each for name, each in zip(names, changes[i], strict=True) if each is not None}
        if i == 0:
            solver.setup(**given)
        else:
            solver.update(**given)
        solver.solve()
        return np.array(solver.result.x)[: sample.size]

    return solve


def by_proxqp(sample: Sample, tolerance: float) -> Solve:
    from proxsuite import proxqp

    big = 1e20
    programs = [tuple(np.clip(part, -big, big) for part in _two_kinds(program)) for program in sample.programs]
    changes = _updated(programs)
    P, _, A, _, G = programs[0][:5]
    solver = proxqp.dense.QP(len(P), len(A), len(G), box_constraints=True)
    solver.settings.eps_abs, solver.settings.max_iter = tolerance, 10_000
    solver.settings.initial_guess = proxqp.InitialGuess.WARM_START_WITH_PREVIOUS_RESULT
    names = "H", "g", "A", "b", "C", "l", "u", "l_box", "u_box"

    def solve(i: int) -> Array:
        given = {name: each for name, each in zip(names, changes[i], strict=True) if each is not None}
        if i == 0:
            solver.init(**given)
        else:
            solver.update(**given, update_preconditioner="H" in given or "A" in given or "C" in given)
        solver.solve()
        return np.array(solver.results.x)[: sample.size]

    return solve


def by_highs(sample: Sample, tolerance: float) -> Solve:
    import highspy

    solver = highspy.Highs()
    for name, value in (("output_flag", False), ("threads", 1)):
        solver.setOptionValue(name, value)
    for name in ("primal_feasibility_tolerance", "dual_feasibility_tolerance"):
        solver.setOptionValue(name, max(tolerance, 1e-10))
    changes = _updated(
        [(sparse.csc_matrix(each.rows[0]), each.q, *each.rows[1:], *each.bounds) for each in sample.programs]
    )
    n = len(sample.programs[0].q)
    places = np.arange(n, dtype=np.int32)

    def solve(i: int) -> Array:
        A, q, l, u, low, high = changes[i]
        if A is not None:
            program = sample.programs[i]
            model = highspy.HighsLp()
            model.num_col_, model.num_row_ = n, A.shape[0]
            model.col_cost_, (model.col_lower_, model.col_upper_) = program.q, program.bounds
            model.row_lower_, model.row_upper_ = program.rows[1:]
            model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
            model.a_matrix_.start_, model.a_matrix_.index_, model.a_matrix_.value_ = A.indptr, A.indices, A.data
            solver.passModel(model)
        else:
            (_, l_all, u_all), (low_all, high_all) = sample.programs[i].rows, sample.programs[i].bounds
            if q is not None:
                solver.changeColsCost(n, places, q)
            if low is not None or high is not None:
                solver.changeColsBounds(n, places, low_all, high_all)
            if l is not None or u is not None:
                m = len(l_all)
                solver.changeRowsBounds(m, np.arange(m, dtype=np.int32), l_all, u_all)
        solver.run()
        return np.array(solver.getSolution().col_value)[: sample.size]

    return solve


def by_pdlp(sample: Sample, tolerance: float) -> Solve:
    from ortools.pdlp import solvers_pb2
    from ortools.pdlp.python import pdlp

    def convert(program: Any) -> Any:
        made, (A, l, u), (low, high) = pdlp.QuadraticProgram(), program.rows, program.bounds
        made.objective_vector, made.constraint_matrix = program.q, sparse.csc_matrix(A)
        made.constraint_lower_bounds, made.constraint_upper_bounds = l, u
        made.variable_lower_bounds, made.variable_upper_bounds = low, high
        return made

    options = solvers_pb2.PrimalDualHybridGradientParams()
    criteria = options.termination_criteria
    criteria.simple_optimality_criteria.eps_optimal_absolute = tolerance
    criteria.simple_optimality_criteria.eps_optimal_relative = tolerance
    criteria.iteration_limit = MAX_ITERATIONS
    made = [convert(program) for program in sample.programs]
    return lambda i: np.array(pdlp.primal_dual_hybrid_gradient(made[i], options).primal_solution)[: sample.size]


def _estimator(make: Callable[[dict[str, Any], float], Any], fit: Callable[[Any, dict[str, Any]], Array]) -> Prepare:
    """Return a peer that makes an estimator from the arrays of an instance and fits it, warnings left out."""

    def prepare(sample: Sample, tolerance: float) -> Solve:
        def solve(i: int) -> Array:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                data = dict(sample.arrays[i])
                return np.asarray(fit(make(data, tolerance), data))

        return solve

    return prepare


def _shared(package: str, data: dict[str, Any], tolerance: float) -> Any:
    """Return a lasso or elastic net of scikit-learn, celer or skglm, which divide by the number of rows."""
    module, m = importlib.import_module(package), len(data["A"])
    weight, ridge = data["weight"] / m, data["ridge"] / m
    options = {"fit_intercept": False, "tol": tolerance, "max_iter": MAX_ITERATIONS}
    if ridge == 0:
        return module.Lasso(alpha=weight, **options)
    return module.ElasticNet(alpha=weight + ridge, l1_ratio=weight / (weight + ridge), **options)


def _lasso(package: str) -> tuple[str, Prepare]:
    def make(data: dict[str, Any], tolerance: float) -> Any:
        return _shared(package, data, tolerance)

    return package.partition(".")[0], _estimator(make, lambda model, data: model.fit(data["A"], data["b"]).coef_)


def _group_lasso(data: dict[str, Any], tolerance: float) -> Any:
    from celer import GroupLasso

    alpha = data["weight"] / len(data["A"])
    return GroupLasso(groups=data["each"], alpha=alpha, fit_intercept=False, tol=tolerance, max_iter=1000)


def _logistic(data: dict[str, Any], tolerance: float) -> Any:
    from sklearn.linear_model import LogisticRegression

    C = 1 / (data["ridge"] * len(data["features"]))
    return LogisticRegression(C=C, fit_intercept=False, tol=tolerance, max_iter=10_000, solver="newton-cholesky")


def _symmetric(model: Any, data: dict[str, Any]) -> Array:
    """Return weights (features, classes) of a model fitted to labels, some of which may be missing."""
    found = np.zeros((data["features"].shape[1], data["k"]))
    found[:, np.unique(data["labels"])] = model.fit(data["features"], data["labels"]).coef_.T
    return found


def _sparse_logistic(package: str) -> tuple[str, Prepare]:
    def make(data: dict[str, Any], tolerance: float) -> Any:
        if package == "celer":
            from celer import LogisticRegression

            return LogisticRegression(C=1 / data["weight"], tol=tolerance, max_iter=1000)
        from sklearn.linear_model import LogisticRegression

        options = {"fit_intercept": False, "tol": tolerance, "max_iter": 100_000}
        return LogisticRegression(C=1 / data["weight"], l1_ratio=1, solver="liblinear", **options)

    return package, _estimator(make, lambda model, data: model.fit(data["features"], data["labels"]).coef_[0])


def _svm(data: dict[str, Any], tolerance: float) -> Any:
    from sklearn.svm import LinearSVC

    return LinearSVC(loss="hinge", C=data["C"], fit_intercept=False, tol=tolerance, max_iter=MAX_ITERATIONS)


def _nonnegative(sample: Sample, tolerance: float) -> Solve:
    from scipy.optimize import nnls

    return lambda i: nnls(sample.arrays[i]["A"], sample.arrays[i]["b"], maxiter=10_000)[0]


def _isotonic(sample: Sample, tolerance: float) -> Solve:
    from scipy.optimize import isotonic_regression

    return lambda i: isotonic_regression(sample.arrays[i]["y"]).x


def _sinkhorn(sample: Sample, tolerance: float) -> Solve:
    """Sinkhorn's iterations on the kernel, until the first marginal is right to the tolerance."""

    def solve(i: int) -> Array:
        C, a, b, e = (sample.arrays[i][name] for name in ("C", "a", "b", "entropy"))
        K, v = np.exp(-C / e), np.ones_like(b)
        for k in range(MAX_ITERATIONS):
            u = a / (K @ v)
            v = b / (K.T @ u)
            if k % 10 == 0 and np.abs(u * (K @ v) - a).sum() < tolerance:
                break
        return e * np.log(np.append(u, v))

    return solve


def _graphical_lasso(sample: Sample, tolerance: float) -> Solve:
    from sklearn.covariance import graphical_lasso

    def solve(i: int) -> Array:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            data = sample.arrays[i]
            return graphical_lasso(data["S"], data["weight"], tol=tolerance, enet_tol=tolerance, max_iter=1000)[1]

    return solve


def _lbfgsb(sample: Sample, tolerance: float) -> Solve:
    """SciPy's L-BFGS-B on Poisson likelihoods with bounds."""
    from scipy.optimize import minimize

    def solve(i: int) -> Array:
        A, y, background = (sample.arrays[i][name] for name in ("A", "y", "background"))

        def both(x: Array) -> tuple[float, Array]:
            mean = A @ x + background
            return float(mean.sum() - y @ np.log(mean)), A.T @ (1 - y / mean)

        options = {"ftol": 1e-4 * tolerance, "gtol": tolerance, "maxiter": 10_000, "maxfun": 100_000}
        x0, bounds = np.ones(A.shape[1]), [(0, None)] * A.shape[1]
        return minimize(both, x0, jac=True, method="L-BFGS-B", bounds=bounds, options=options).x

    return solve


PROGRAMS = {
    "OSQP": ("osqp", by_osqp),
    "DAQP": ("daqp", by_daqp),
    "PIQP": ("piqp", by_piqp),
    "ProxQP": ("proxsuite", by_proxqp),
}

SPECIAL: dict[str, dict[str, tuple[str, Prepare]]] = {
    "lasso": {
        "scikit-learn": _lasso("sklearn.linear_model"),
        "celer": _lasso("celer"),
        "skglm": _lasso("skglm"),
    },
    "group_lasso": {
        "celer": ("celer", _estimator(_group_lasso, lambda model, data: model.fit(data["A"], data["b"]).coef_)),
    },
    "logistic": {
        "scikit-learn": (
            "sklearn",
            _estimator(_logistic, lambda model, data: model.fit(data["features"], data["labels"]).coef_[0]),
        ),
    },
    "multinomial": {"scikit-learn": ("sklearn", _estimator(_logistic, _symmetric))},
    "sparse_logistic": {"scikit-learn": _sparse_logistic("sklearn"), "celer": _sparse_logistic("celer")},
    "svm": {
        "scikit-learn": (
            "sklearn",
            _estimator(_svm, lambda model, data: model.fit(data["features"], data["labels"]).coef_[0]),
        ),
    },
    "nonnegative": {"SciPy nnls": ("scipy", _nonnegative)},
    "isotonic": {"SciPy isotonic": ("scipy", _isotonic)},
    "poisson": {"SciPy L-BFGS-B": ("scipy", _lbfgsb)},
    "transport": {"Sinkhorn": ("numpy", _sinkhorn)},
    "covariance": {"scikit-learn": ("sklearn", _graphical_lasso)},
}
