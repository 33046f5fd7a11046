"""Linear maps of each instance, with adjoints and bounds on their norms."""

from lmd.operators.base import Identity, LinearOperator
from lmd.operators.blur import Blur, gaussian_kernel, motion_kernel
from lmd.operators.differences import Differences
from lmd.operators.functions import FromFunctions
from lmd.operators.matrix import Mask, Matrix
from lmd.operators.projections import ParallelBeam

__all__ = [
    "Blur",
    "Differences",
    "FromFunctions",
    "Identity",
    "LinearOperator",
    "Mask",
    "Matrix",
    "ParallelBeam",
    "gaussian_kernel",
    "motion_kernel",
]
