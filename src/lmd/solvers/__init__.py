"""Algorithms: each is `init` and `step`; `run` drives any of them; wrappers change any of them."""

from lmd.solvers.base import Solver, State
from lmd.solvers.classical.admm import ADMM
from lmd.solvers.classical.circulant_admm import CirculantADMM
from lmd.solvers.classical.fgp import FGP
from lmd.solvers.classical.gradient_descent import Adam, GradientDescent, Nesterov, ProximalGradient
from lmd.solvers.classical.interior_point import InteriorPoint
from lmd.solvers.classical.lbfgs import LBFGS
from lmd.solvers.classical.pdhg import PDHG, RelaxedPDHG
from lmd.solvers.classical.qp_interior_point import QPInteriorPoint
from lmd.solvers.learned.dual import LearnedDual
from lmd.solvers.learned.fgp import LearnedFGP
from lmd.solvers.learned.gradient import LearnedBlockNewton
from lmd.solvers.learned.interior_point import LearnedInteriorPoint
from lmd.solvers.learned.saddle import LearnedPDHG, LearnedSaddle
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
from lmd.solvers.steps import DecayingSteps, LearnedSteps, Steps
from lmd.solvers.wrappers import Averaged, BestSoFar, NoWorseThanStart, Sequential, Stochastic, WithInitialiser

__all__ = [
    "ADMM",
    "FGP",
    "LBFGS",
    "PDHG",
    "AcceleratedMirrorDescent",
    "AcceleratedStochasticMirrorDescent",
    "Adam",
    "Averaged",
    "BacktrackedMirrorDescent",
    "BestSoFar",
    "CirculantADMM",
    "CorrectedMirrorDescent",
    "DecayingSteps",
    "ExactMirrorDescent",
    "GradientDescent",
    "InteriorPoint",
    "LazyMirrorDescent",
    "LearnedBlockNewton",
    "LearnedDual",
    "LearnedFGP",
    "LearnedInteriorPoint",
    "LearnedMirrorDescent",
    "LearnedPDHG",
    "LearnedSaddle",
    "LearnedSteps",
    "MirrorDescent",
    "Nesterov",
    "NoWorseThanStart",
    "ProximalGradient",
    "ProximalMirrorDescent",
    "QPInteriorPoint",
    "RelaxedPDHG",
    "Result",
    "Sequential",
    "Solver",
    "State",
    "Status",
    "Steps",
    "Stochastic",
    "WithInitialiser",
    "load",
    "run",
    "save",
]
