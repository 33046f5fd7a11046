"""Linear maps of each instance, with adjoints and bounds on norms: what terms of a composite problem stand behind."""

from lmd.operators.base import Identity, LinearOperator
from lmd.operators.blur import Blur, gaussian_kernel, motion_kernel
from lmd.operators.differences import Bends, Differences, Slopes
from lmd.operators.functions import FromFunctions
from lmd.operators.matrix import Mask, Matrix
from lmd.operators.projections import ParallelBeam
from lmd.operators.stack import Stack

__all__ = [
    "Bends",
    "Blur",
    "Differences",
    "FromFunctions",
    "Identity",
    "LinearOperator",
    "Mask",
    "Matrix",
    "ParallelBeam",
    "Slopes",
    "Stack",
    "gaussian_kernel",
    "motion_kernel",
]
