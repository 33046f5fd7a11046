"""`lmd.solve` in benchopt's benchmark of total variation: copy to `solvers/lmd.py` of benchmark_tv_2d."""

from benchopt import BaseSolver, safe_import_context
from benchopt.stopping_criterion import SufficientProgressCriterion

with safe_import_context() as import_ctx:
    import numpy as np
    import torch

    import lmd


class Solver(BaseSolver):
    """Fast gradient projection with learned step-sizes and momenta, to a proven relative gap."""

    name = "lmd"
    stopping_criterion = SufficientProgressCriterion(patience=8, strategy="tolerance")
    install_cmd = "conda"
    requirements = ("pip::lmd",)

    def skip(self, A, reg, delta, data_fit, y, isotropy):
        if data_fit != "lsq" or isotropy not in ("anisotropic", "isotropic"):
            return True, "squares alone, anisotropic or isotropic"
        if not np.array_equal(A @ y, y):
            return True, "denoising alone: without a box there is no certificate of anything else"
        return False, None

    def set_objective(self, A, reg, delta, data_fit, y, isotropy):
        noisy = torch.from_numpy(y)[None, None]
        self.problem = lmd.problems.TVDenoising(noisy, 2 * reg, isotropic=isotropy == "isotropic", halved=True)

    def warm_up(self):
        self.run_once(1e-3)  # the trained numbers are read when they are first needed

    def run(self, tolerance):
        self.answer = lmd.solve(self.problem, tolerance).x

    def get_next(self, tolerance):
        return min(0.1, max(tolerance / 3, 1e-10))

    def get_result(self):
        return {"u": self.answer[0, 0].numpy()}
