"""Batches of convex problems, models as constructors, and families that sample problems."""

from lmd.problems.base import Family, PenalisedProblem, Problem
from lmd.problems.classifiers import SVM, LinearClassifier, LinearClassifierFamily, SVMFamily
from lmd.problems.composite import Composite
from lmd.problems.image_families import (
    TomographyFamily,
    TVDeblurringFamily,
    TVDenoisingFamily,
    TVInpaintingFamily,
)
from lmd.problems.quadratic_program import ControlFamily, QuadraticProgram, from_cvxpy
from lmd.problems.regression import Lasso, LassoFamily, LeastSquares, LeastSquaresFamily
from lmd.problems.simplex import SimplexFamily
from lmd.problems.tv import SecondOrderModel, TVDeblurring, TVDenoising, TVInpainting, TVModel, TVTomography
from lmd.terms import Box

__all__ = [
    "SVM",
    "Box",
    "Composite",
    "ControlFamily",
    "Family",
    "Lasso",
    "LassoFamily",
    "LeastSquares",
    "LeastSquaresFamily",
    "LinearClassifier",
    "LinearClassifierFamily",
    "PenalisedProblem",
    "Problem",
    "QuadraticProgram",
    "SVMFamily",
    "SecondOrderModel",
    "SimplexFamily",
    "TVDeblurring",
    "TVDeblurringFamily",
    "TVDenoising",
    "TVDenoisingFamily",
    "TVInpainting",
    "TVInpaintingFamily",
    "TVModel",
    "TVTomography",
    "TomographyFamily",
    "from_cvxpy",
]
