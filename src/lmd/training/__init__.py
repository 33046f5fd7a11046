"""Learning a solver on a family: the unrolled loss, schedules, checkpoints, distribution over processes."""

from lmd.training.loss import LossParts, UnrolledLoss
from lmd.training.result import TrainingResult
from lmd.training.settings import TrainingSettings
from lmd.training.train import train

__all__ = ["LossParts", "TrainingResult", "TrainingSettings", "UnrolledLoss", "train"]
