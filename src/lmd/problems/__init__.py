"""Batches of convex problems, models as constructors, and families that sample problems."""

from lmd.problems.base import Family, Problem
from lmd.problems.classifiers import SVM, LinearClassifier, LinearClassifierFamily, SVMFamily
from lmd.problems.composite import Composite
from lmd.problems.image_families import (
    TomographyFamily,
    TVDeblurringFamily,
    TVDenoisingFamily,
    TVInpaintingFamily,
)
from lmd.problems.models import SecondOrderModel, TVModel
from lmd.problems.penalised import PenalisedProblem
from lmd.problems.quadratic_program import ControlFamily, QuadraticProgram, from_cvxpy
from lmd.problems.regression import Lasso, LassoFamily, LeastSquares, LeastSquaresFamily
from lmd.problems.simplex import SimplexFamily
from lmd.problems.tv import TVDeblurring, TVDenoising, TVInpainting, TVReconstruction, TVTomography
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
    "TVReconstruction",
    "TVTomography",
    "TomographyFamily",
    "from_cvxpy",
]
