"""Convex functions of one array: each with its prox, conjugate and residual, and a conformance suite beside them."""

from lmd.terms.absolute import Absolute
from lmd.terms.base import Term
from lmd.terms.box import Box
from lmd.terms.boxed import Boxed
from lmd.terms.domain import Domain
from lmd.terms.entropy import NegativeEntropy
from lmd.terms.hinge import Hinge
from lmd.terms.huber import Huber
from lmd.terms.kullback_leibler import KullbackLeibler
from lmd.terms.masked import Masked
from lmd.terms.masked_squares import MaskedSquares
from lmd.terms.norms import L1, GroupNorm
from lmd.terms.quadratic import Quadratic
from lmd.terms.shifted import Shifted
from lmd.terms.simplex import Max, Simplex
from lmd.terms.squares import BoxedSquares, Squares
from lmd.terms.stacked import Stacked
from lmd.terms.zero import Zero

__all__ = [
    "L1",
    "Absolute",
    "Box",
    "Boxed",
    "BoxedSquares",
    "Domain",
    "GroupNorm",
    "Hinge",
    "Huber",
    "KullbackLeibler",
    "Masked",
    "MaskedSquares",
    "Max",
    "NegativeEntropy",
    "Quadratic",
    "Shifted",
    "Simplex",
    "Squares",
    "Stacked",
    "Term",
    "Zero",
]
