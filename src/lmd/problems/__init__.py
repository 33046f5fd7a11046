"""What is minimised: batches of convex functions with values, subgradients and what else they can offer."""

from lmd.problems.base import Family, FunctionProblem, Problem, as_problem
from lmd.problems.domains import Box, Domain, Simplex, project_simplex
from lmd.problems.least_squares import LeastSquares, LeastSquaresFamily
from lmd.problems.simplex import KLDivergence, SimplexFamily, SquaredDistance

__all__ = [
    "Box",
    "Domain",
    "Family",
    "FunctionProblem",
    "KLDivergence",
    "LeastSquares",
    "LeastSquaresFamily",
    "Problem",
    "Simplex",
    "SimplexFamily",
    "SquaredDistance",
    "as_problem",
    "project_simplex",
]
