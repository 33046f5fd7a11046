"""Solvers: each one has `init` and `step`, `run` drives any solver, and wrappers change any solver."""

from lmd.solvers.base import Solver, State
from lmd.solvers.classical.admm import ADMM
from lmd.solvers.classical.fgp import FGP
from lmd.solvers.classical.gradient_descent import LBFGS, Adam, GradientDescent, Nesterov, ProximalGradient
from lmd.solvers.classical.pdhg import PDHG, RelaxedPDHG
from lmd.solvers.learned.interior_point import LearnedInteriorPoint
from lmd.solvers.learned.primal_dual import LearnedDual, LearnedFGP, LearnedPDHG, LearnedSaddle
from lmd.solvers.mirror.exact import BacktrackedMirrorDescent, ExactMirrorDescent
from lmd.solvers.mirror.mirror_descent import (
    AcceleratedMirrorDescent,
    AcceleratedStochasticMirrorDescent,
    CorrectedMirrorDescent,
    LazyMirrorDescent,
    LearnedMirrorDescent,
    MirrorDescent,
    ProximalMirrorDescent,
)
from lmd.solvers.result import Result, Status
from lmd.solvers.run import run
from lmd.solvers.saving import load, save
from lmd.solvers.steps import LearnedSteps, Steps
from lmd.solvers.wrappers import BestSoFar, Stochastic

__all__ = [
    "ADMM",
    "FGP",
    "LBFGS",
    "PDHG",
    "AcceleratedMirrorDescent",
    "AcceleratedStochasticMirrorDescent",
    "Adam",
    "BacktrackedMirrorDescent",
    "BestSoFar",
    "CorrectedMirrorDescent",
    "ExactMirrorDescent",
    "GradientDescent",
    "LazyMirrorDescent",
    "LearnedDual",
    "LearnedFGP",
    "LearnedInteriorPoint",
    "LearnedMirrorDescent",
    "LearnedPDHG",
    "LearnedSaddle",
    "LearnedSteps",
    "MirrorDescent",
    "Nesterov",
    "ProximalGradient",
    "ProximalMirrorDescent",
    "RelaxedPDHG",
    "Result",
    "Solver",
    "State",
    "Status",
    "Steps",
    "Stochastic",
    "load",
    "run",
    "save",
]
