"""Algorithms: each is `init` and `step`; `run` drives any of them; wrappers change any of them."""

from lmd.solvers.accelerated import AcceleratedMirrorDescent, AcceleratedStochasticMirrorDescent
from lmd.solvers.adam import Adam
from lmd.solvers.admm import ADMM
from lmd.solvers.averaged import Averaged
from lmd.solvers.backtracking import AcceleratedBacktrackedMirrorDescent, BacktrackedMirrorDescent
from lmd.solvers.base import DualState, Solver, State
from lmd.solvers.best_so_far import BestSoFar
from lmd.solvers.carded import Carded
from lmd.solvers.certificate import Certificate, Constant
from lmd.solvers.circulant_admm import CirculantADMM
from lmd.solvers.corrected_mirror_descent import CorrectedMirrorDescent
from lmd.solvers.exact_mirror_descent import ExactMirrorDescent
from lmd.solvers.fgp import FGP
from lmd.solvers.gradient_descent import GradientDescent, ProjectedGradient
from lmd.solvers.interior_point import InteriorPoint
from lmd.solvers.ladder import Ladder
from lmd.solvers.lazy import LazyMirrorDescent
from lmd.solvers.lbfgs import LBFGS
from lmd.solvers.learned_block_newton import LearnedBlockNewton
from lmd.solvers.learned_dual import LearnedDual
from lmd.solvers.learned_fgp import LearnedFGP
from lmd.solvers.learned_gradient import LearnedGradient
from lmd.solvers.learned_interior_point import LearnedInteriorPoint
from lmd.solvers.learned_pdhg import LearnedPDHG
from lmd.solvers.learned_quasi_newton import LearnedQuasiNewton
from lmd.solvers.learned_saddle import LearnedSaddle
from lmd.solvers.metrics import DenseMetric, DiagonalMetric, LowRankMetric, Metric, ScalarMetric
from lmd.solvers.mirror_descent import LearnedMirrorDescent, MirrorDescent
from lmd.solvers.nesterov import Nesterov
from lmd.solvers.not_above_start import NotAboveStart
from lmd.solvers.pdhg import PDHG
from lmd.solvers.proximal import ProximalMirrorDescent, proximal_map
from lmd.solvers.proximal_gradient import ProximalGradient
from lmd.solvers.qp_interior_point import QPInteriorPoint
from lmd.solvers.relaxed_pdhg import RelaxedPDHG
from lmd.solvers.result import History, Result, Status
from lmd.solvers.run import run
from lmd.solvers.saving import load, save
from lmd.solvers.started import Started, Then
from lmd.solvers.starts import MeanStart, NearestStart, NetworkStart, Start
from lmd.solvers.steps import ConstantSteps, DecayingSteps, LearnedSteps, ScaledSteps, Steps
from lmd.solvers.stochastic import Stochastic

__all__ = [
    "ADMM",
    "FGP",
    "LBFGS",
    "PDHG",
    "AcceleratedBacktrackedMirrorDescent",
    "AcceleratedMirrorDescent",
    "AcceleratedStochasticMirrorDescent",
    "Adam",
    "Averaged",
    "BacktrackedMirrorDescent",
    "BestSoFar",
    "Carded",
    "Certificate",
    "CirculantADMM",
    "Constant",
    "ConstantSteps",
    "CorrectedMirrorDescent",
    "DecayingSteps",
    "DenseMetric",
    "DiagonalMetric",
    "DualState",
    "ExactMirrorDescent",
    "GradientDescent",
    "History",
    "InteriorPoint",
    "Ladder",
    "LazyMirrorDescent",
    "LearnedBlockNewton",
    "LearnedDual",
    "LearnedFGP",
    "LearnedGradient",
    "LearnedInteriorPoint",
    "LearnedMirrorDescent",
    "LearnedPDHG",
    "LearnedQuasiNewton",
    "LearnedSaddle",
    "LearnedSteps",
    "LowRankMetric",
    "MeanStart",
    "Metric",
    "MirrorDescent",
    "NearestStart",
    "Nesterov",
    "NetworkStart",
    "NotAboveStart",
    "ProjectedGradient",
    "ProximalGradient",
    "ProximalMirrorDescent",
    "QPInteriorPoint",
    "RelaxedPDHG",
    "Result",
    "ScalarMetric",
    "ScaledSteps",
    "Solver",
    "Start",
    "Started",
    "State",
    "Status",
    "Steps",
    "Stochastic",
    "Then",
    "load",
    "proximal_map",
    "run",
    "save",
]
