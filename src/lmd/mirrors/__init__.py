"""Geometry: convex potentials with their two maps, each of which passes the conformance suite beside them."""

from lmd.mirrors.base import Mirror
from lmd.mirrors.constrained import DiagonalBox, DiagonalSimplex
from lmd.mirrors.convolutional import ConvICNN
from lmd.mirrors.entropic import Entropic
from lmd.mirrors.euclidean import Euclidean, EuclideanBox, EuclideanSimplex
from lmd.mirrors.low_rank import LowRankQuadratic
from lmd.mirrors.one_layer import OneLayer
from lmd.mirrors.one_layer_quadratic import OneLayerQuadratic
from lmd.mirrors.pairs import ConvPair, DensePair, Pair
from lmd.mirrors.potentials import DenseICNN
from lmd.mirrors.quadratic import DiagonalQuadratic, Quadratic
from lmd.mirrors.separable import Separable, SplineBox, SplineSimplex
from lmd.mirrors.splines import SmoothSplines, Splines
from lmd.mirrors.transforms import BlockCosine, Chain, Cosine, Haar, Rotation, Transform

__all__ = [
    "BlockCosine",
    "Chain",
    "ConvICNN",
    "ConvPair",
    "Cosine",
    "DenseICNN",
    "DensePair",
    "DiagonalBox",
    "DiagonalQuadratic",
    "DiagonalSimplex",
    "Entropic",
    "Euclidean",
    "EuclideanBox",
    "EuclideanSimplex",
    "Haar",
    "LowRankQuadratic",
    "Mirror",
    "OneLayer",
    "OneLayerQuadratic",
    "Pair",
    "Quadratic",
    "Rotation",
    "Separable",
    "SmoothSplines",
    "SplineBox",
    "SplineSimplex",
    "Splines",
    "Transform",
]
