"""Mirrors: strictly convex potentials with their two maps, `to_dual` and `to_primal`."""

from lmd.mirrors.base import Mirror
from lmd.mirrors.entropic import Entropic
from lmd.mirrors.euclidean import Euclidean, EuclideanBox, EuclideanSimplex
from lmd.mirrors.one_layer import OneLayer
from lmd.mirrors.pairs import ConvPair, DensePair
from lmd.mirrors.quadratic import DiagonalQuadratic, Quadratic
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
