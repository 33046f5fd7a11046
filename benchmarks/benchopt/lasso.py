"""`lmd.solve` in benchopt's benchmark of the lasso: copy to `solvers/lmd.py` of benchmark_lasso."""

from benchopt import BaseSolver, safe_import_context
from benchopt.stopping_criterion import SufficientProgressCriterion

with safe_import_context() as import_ctx:
    import numpy as np
    import torch

    import lmd


class Solver(BaseSolver):
    """The solver that `lmd.solve` takes for a lasso, to a proven relative gap."""

    name = "lmd"
    stopping_criterion = SufficientProgressCriterion(patience=8, strategy="tolerance")
    install_cmd = "conda"
    requirements = ("pip::lmd",)

    def skip(self, X, y, lmbd, fit_intercept):
        return (True, "dense matrices alone") if hasattr(X, "tocsc") else (False, None)

    def set_objective(self, X, y, lmbd, fit_intercept):
        self.X, self.y, self.lmbd, self.fit_intercept = X, y, lmbd, fit_intercept

    def warm_up(self):
        self.run_once(1e-1)

    def run(self, tolerance):
        centre, mean = (self.X.mean(axis=0), self.y.mean()) if self.fit_intercept else (0.0, 0.0)
        A, b = (torch.from_numpy(np.ascontiguousarray(each)) for each in (self.X - centre, self.y - mean))
        coefficients = lmd.solve(lmd.problems.Lasso(A, b[None], float(self.lmbd)), tolerance).x[0].numpy()
        self.beta = np.r_[coefficients, mean - centre @ coefficients] if self.fit_intercept else coefficients

    def get_next(self, tolerance):
        return min(0.1, max(tolerance / 3, 1e-10))

    def get_result(self):
        return {"beta": self.beta}
