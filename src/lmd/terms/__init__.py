"""Convex functions of one array: each with its prox, conjugate and residual, and a conformance suite beside them."""

from lmd.terms.base import Term, Zero
from lmd.terms.domains import Box, Domain, Simplex
from lmd.terms.entropy import KullbackLeibler, NegativeEntropy
from lmd.terms.hinge import Hinge
from lmd.terms.norms import L1, Absolute, GroupNorm, Huber
from lmd.terms.quadratic import Quadratic
from lmd.terms.squares import MaskedSquares, Squares
from lmd.terms.stacked import Stacked
from lmd.terms.wrappers import Boxed, Masked, Shifted

__all__ = [
    "L1",
    "Absolute",
    "Box",
    "Boxed",
    "Domain",
    "GroupNorm",
    "Hinge",
    "Huber",
    "KullbackLeibler",
    "Masked",
    "MaskedSquares",
    "NegativeEntropy",
    "Quadratic",
    "Shifted",
    "Simplex",
    "Squares",
    "Stacked",
    "Term",
    "Zero",
]
