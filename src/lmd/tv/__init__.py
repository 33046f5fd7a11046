"""The compiled engine for total variation.

`match(problem, tolerance)` looks at the terms and operators of a problem and returns the plan by which compiled code
solves it, or None. `PrimalDual` is relaxed PDHG with compiled iterations for the problems that have them. Without
compiled code nothing matches: `lmd.solve` then runs FGP or PDHG in PyTorch and proves the same gaps.
"""

from lmd.tv.plans import match, plan_denoising
from lmd.tv.primal_dual import PrimalDual

__all__ = ["PrimalDual", "match", "plan_denoising"]
