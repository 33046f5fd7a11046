"""Mirrors: strictly convex potentials with their two maps, `to_dual` and `to_primal`."""

from lmd.mirrors.base import Mirror
from lmd.mirrors.closed_form import (
    DiagonalQuadratic,
    Entropic,
    Euclidean,
    EuclideanBox,
    EuclideanSimplex,
    OneLayer,
    Quadratic,
)
from lmd.mirrors.pairs import ConvPair, DensePair
from lmd.mirrors.separable import Cosine, Rotation, Separable

__all__ = [
    "ConvPair",
    "Cosine",
    "DensePair",
    "DiagonalQuadratic",
    "Entropic",
    "Euclidean",
    "EuclideanBox",
    "EuclideanSimplex",
    "Mirror",
    "OneLayer",
    "Quadratic",
    "Rotation",
    "Separable",
]
