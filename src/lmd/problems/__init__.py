"""What is minimised: batches of convex functions with values, subgradients and what else they can offer."""

from lmd.operators import Blur, Differences, Identity, LinearOperator, Mask, ParallelBeam, gaussian_kernel
from lmd.problems.base import Family, FunctionProblem, Problem, as_problem
from lmd.problems.composite import Composite
from lmd.problems.cvxpy_family import from_cvxpy
from lmd.problems.lasso import Lasso, LassoFamily
from lmd.problems.least_squares import LeastSquares, LeastSquaresFamily
from lmd.problems.linear_classifier import LinearClassifier, LinearClassifierFamily
from lmd.problems.models import SecondOrderModel, TVModel
from lmd.problems.penalised import PenalisedProblem
from lmd.problems.quadratic_program import ControlFamily, PortfolioFamily, QuadraticProgram
from lmd.problems.reconstruction import TVDeblurring, TVReconstruction, TVTomography
from lmd.problems.reconstruction_families import TomographyFamily, TVDeblurringFamily
from lmd.problems.simplex import KLDivergence, SimplexFamily, SquaredDistance
from lmd.problems.svm import SVM, SVMFamily
from lmd.problems.tv import TVDenoising, TVInpainting, TVProblem
from lmd.problems.tv_families import TVDenoisingFamily, TVFamily, TVInpaintingFamily, add_noise, random_masks
from lmd.terms import L1, Box, Domain, NegativeEntropy, Simplex
from lmd.terms.simplex import project_simplex

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
