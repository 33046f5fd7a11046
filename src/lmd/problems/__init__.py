"""What is minimised: batches of convex functions with values, subgradients and what else they can offer."""

from lmd.problems.base import Family, FunctionProblem, Problem, as_problem
from lmd.problems.composite import CompositeProblem
from lmd.problems.domains import Box, Domain, Simplex, project_simplex
from lmd.problems.least_squares import LeastSquares, LeastSquaresFamily
from lmd.problems.linear_classifier import LinearClassifier, LinearClassifierFamily
from lmd.problems.operators import FiniteDifferences, Identity, LinearOperator, Mask
from lmd.problems.penalised import L1, NegativeEntropy, PenalisedProblem, Penalty
from lmd.problems.simplex import KLDivergence, SimplexFamily, SquaredDistance
from lmd.problems.svm import SVM, SVMFamily
from lmd.problems.tv import TVDenoising, TVInpainting, TVProblem
from lmd.problems.tv_families import TVDenoisingFamily, TVFamily, TVInpaintingFamily, add_noise, random_masks

__all__ = [
    "L1",
    "SVM",
    "Box",
    "CompositeProblem",
    "Domain",
    "Family",
    "FiniteDifferences",
    "FunctionProblem",
    "Identity",
    "KLDivergence",
    "LeastSquares",
    "LeastSquaresFamily",
    "LinearClassifier",
    "LinearClassifierFamily",
    "LinearOperator",
    "Mask",
    "NegativeEntropy",
    "PenalisedProblem",
    "Penalty",
    "Problem",
    "SVMFamily",
    "Simplex",
    "SimplexFamily",
    "SquaredDistance",
    "TVDenoising",
    "TVDenoisingFamily",
    "TVFamily",
    "TVInpainting",
    "TVInpaintingFamily",
    "TVProblem",
    "add_noise",
    "as_problem",
    "project_simplex",
    "random_masks",
]
