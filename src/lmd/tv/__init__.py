"""The compiled engine for total variation.

`match(problem, tolerance)` looks at the terms and operators of a problem and returns the plan by which compiled code
solves it, or None. `PrimalDual` is relaxed PDHG whose iterations run in compiled code where there is some for the
problem. Without a compiler nothing matches: `lmd.solve` then takes FGP or PDHG in PyTorch, to the same proof.
"""

from lmd.tv.matching import match
from lmd.tv.primal_dual import PrimalDual

__all__ = ["PrimalDual", "match"]
