"""What is minimised: batches of convex functions with values, subgradients and what else they can offer."""

from lmd.operators import Blur, Differences, Identity, LinearOperator, Mask, ParallelBeam, gaussian_kernel
from lmd.problems.base import Family, FunctionProblem, Problem, as_problem
from lmd.problems.classifiers import SVM, LinearClassifier, LinearClassifierFamily, SVMFamily
from lmd.problems.composite import Composite
from lmd.problems.image_families import (
    TomographyFamily,
    TVDeblurringFamily,
    TVDenoisingFamily,
    TVFamily,
    TVInpaintingFamily,
    add_noise,
    random_masks,
)
from lmd.problems.models import SecondOrderModel, TVModel
from lmd.problems.penalised import PenalisedProblem
from lmd.problems.quadratic_program import ControlFamily, PortfolioFamily, QuadraticProgram, from_cvxpy
from lmd.problems.regression import Lasso, LassoFamily, LeastSquares, LeastSquaresFamily
from lmd.problems.simplex import KLDivergence, SimplexFamily, SquaredDistance
from lmd.problems.tv import TVDeblurring, TVDenoising, TVInpainting, TVProblem, TVReconstruction, TVTomography
from lmd.terms import L1, Box, Domain, NegativeEntropy, Simplex
from lmd.terms.domains import project_simplex

__all__ = [
    "L1",
    "SVM",
    "Blur",
    "Box",
    "Composite",
    "ControlFamily",
    "Differences",
    "Domain",
    "Family",
    "FunctionProblem",
    "Identity",
    "KLDivergence",
    "Lasso",
    "LassoFamily",
    "LeastSquares",
    "LeastSquaresFamily",
    "LinearClassifier",
    "LinearClassifierFamily",
    "LinearOperator",
    "Mask",
    "NegativeEntropy",
    "ParallelBeam",
    "PenalisedProblem",
    "PortfolioFamily",
    "Problem",
    "QuadraticProgram",
    "SVMFamily",
    "SecondOrderModel",
    "Simplex",
    "SimplexFamily",
    "SquaredDistance",
    "TVDeblurring",
    "TVDeblurringFamily",
    "TVDenoising",
    "TVDenoisingFamily",
    "TVFamily",
    "TVInpainting",
    "TVInpaintingFamily",
    "TVModel",
    "TVProblem",
    "TVReconstruction",
    "TVTomography",
    "TomographyFamily",
    "add_noise",
    "as_problem",
    "from_cvxpy",
    "gaussian_kernel",
    "project_simplex",
    "random_masks",
]
