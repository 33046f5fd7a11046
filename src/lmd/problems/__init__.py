"""What is minimised: batches of convex functions with values, subgradients and what else they can offer."""

from lmd.problems.base import Family, FunctionProblem, Problem, as_problem
from lmd.problems.domains import Box, Domain, Simplex, project_simplex
from lmd.problems.least_squares import LeastSquares, LeastSquaresFamily
from lmd.problems.linear_classifier import LinearClassifier, LinearClassifierFamily
from lmd.problems.simplex import KLDivergence, SimplexFamily, SquaredDistance
from lmd.problems.svm import SVM, SVMFamily

__all__ = [
    "SVM",
    "Box",
    "Domain",
    "Family",
    "FunctionProblem",
    "KLDivergence",
    "LeastSquares",
    "LeastSquaresFamily",
    "LinearClassifier",
    "LinearClassifierFamily",
    "Problem",
    "SVMFamily",
    "Simplex",
    "SimplexFamily",
    "SquaredDistance",
    "as_problem",
    "project_simplex",
]
