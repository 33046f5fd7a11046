"""Convex functions of one array, with prox, conjugate and residual."""

from lmd.terms.base import Term
from lmd.terms.domains import Box, Domain, Simplex, Zero
from lmd.terms.entropy import KullbackLeibler, NegativeEntropy
from lmd.terms.norms import L1, Absolute, GroupNorm, Hinge, Huber
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
