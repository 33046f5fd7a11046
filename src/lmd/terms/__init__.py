"""Convex functions of one array: each with its prox, conjugate and residual, and a conformance suite beside them."""

from lmd.terms.base import Term
from lmd.terms.domains import Box, Domain, Simplex, Zero
from lmd.terms.entropy import KullbackLeibler, NegativeEntropy
from lmd.terms.hinge import Hinge
from lmd.terms.norms import L1, Absolute, GroupNorm, Huber
from lmd.terms.quadratic import Quadratic
from lmd.terms.squares import Squares
from lmd.terms.wrappers import Shifted

__all__ = [
    "L1",
    "Absolute",
    "Box",
    "Domain",
    "GroupNorm",
    "Hinge",
    "Huber",
    "KullbackLeibler",
    "NegativeEntropy",
    "Quadratic",
    "Shifted",
    "Simplex",
    "Squares",
    "Term",
    "Zero",
]
