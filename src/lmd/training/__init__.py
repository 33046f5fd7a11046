"""Training: `train` unrolls a solver on a family, `learn` finds the fastest solver for a class of your own."""

from lmd.training.learn import learn
from lmd.training.settings import TrainingSettings
from lmd.training.train import train

__all__ = ["TrainingSettings", "learn", "train"]
