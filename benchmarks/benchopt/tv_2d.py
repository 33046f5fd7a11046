"""`lmd.solve` in benchopt's benchmark of total variation: copy to `solvers/lmd.py` of benchmark_tv_2d."""

from benchopt import BaseSolver, safe_import_context

with safe_import_context() as import_ctx:
    import numpy as np
    import torch

    import lmd


class Solver(BaseSolver):
    """Fast gradient projection with learned step-sizes and momenta, to a proven relative gap."""

    name = "lmd"
    sampling_strategy = "tolerance"
    install_cmd = "conda"
    requirements = ("pip::lmd",)

    def skip(self, A, reg, delta, data_fit, y, isotropy):
        if data_fit != "lsq" or isotropy not in ("anisotropic", "isotropic"):
            return True, "squares alone, anisotropic or isotropic"
        if not np.array_equal(A @ y, y):
            return True, "denoising alone: without a box there is no certificate of anything else"
        return False, None

    def set_objective(self, A, reg, delta, data_fit, y, isotropy):
        self.data = torch.from_numpy(y)[None, None], 2 * reg, isotropy == "isotropic"

    def warm_up(self):
        self.run_once(1e-3)  # the trained numbers are read when they are first needed

    def run(self, tolerance):
        noisy, weight, isotropic = self.data
        problem = lmd.problems.TVDenoising(noisy, weight, isotropic=isotropic, halved=True)
        self.answer = lmd.solve(problem, tolerance).x

    def get_result(self):
        return {"u": self.answer[0, 0].numpy()}
