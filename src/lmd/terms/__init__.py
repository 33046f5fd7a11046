"""Convex functions of one array: each with its prox, conjugate and residual, and a conformance suite beside them."""

from lmd.terms.base import Term
from lmd.terms.squares import BoxedSquares, Squares

__all__ = [
    "BoxedSquares",
    "Squares",
    "Term",
]
