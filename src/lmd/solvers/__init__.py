"""Algorithms: each is `init` and `step`; `run` drives any of them; wrappers change any of them."""

from lmd.solvers.adam import Adam
from lmd.solvers.base import DualState, Solver, State
from lmd.solvers.best_so_far import BestSoFar
from lmd.solvers.certificate import Certificate, Constant
from lmd.solvers.fgp import FGP
from lmd.solvers.gradient_descent import GradientDescent, ProjectedGradient
from lmd.solvers.lbfgs import LBFGS
from lmd.solvers.mirror_descent import LearnedMirrorDescent, MirrorDescent
from lmd.solvers.nesterov import Nesterov
from lmd.solvers.pdhg import PDHG
from lmd.solvers.result import History, Result, Status
from lmd.solvers.run import run
from lmd.solvers.saving import load, save
from lmd.solvers.steps import ConstantSteps, DecayingSteps, LearnedSteps, ScaledSteps, Steps

__all__ = [
    "FGP",
    "LBFGS",
    "PDHG",
    "Adam",
    "BestSoFar",
    "Certificate",
    "Constant",
    "ConstantSteps",
    "DecayingSteps",
    "DualState",
    "GradientDescent",
    "History",
    "LearnedMirrorDescent",
    "LearnedSteps",
    "MirrorDescent",
    "Nesterov",
    "ProjectedGradient",
    "Result",
    "ScaledSteps",
    "Solver",
    "State",
    "Status",
    "Steps",
    "load",
    "run",
    "save",
]
