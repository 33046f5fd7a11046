"""Isotonic regression: the nearest sequence that never falls."""

import math

import numpy as np

from lmd.operators import Differences
from lmd.problems import Composite
from lmd.terms import Box, Squares

from .base import Program, Sample, tensor

SIZES = {"small": 20, "medium": 100, "large": 400}


def sample(size, batch, generator):
    n = SIZES[size]
    y = np.linspace(0, 3, n) ** 2 / 3 + generator.normal(size=(batch, n))
    data = tensor(y)

    def build():
        return Composite(Squares(data, 0.5), (Box(0.0, math.inf), Differences((n,))), start=data)

    A, l, u = np.diff(np.eye(n), axis=0), np.zeros(n - 1), np.full(n - 1, np.inf)
    programs = [Program(P=np.eye(n), q=-each, r=each @ each / 2, A=A, l=l, u=u) for each in y]
    return Sample(build=build, programs=programs, shape=(n,), kind="isotonic", arrays=[{"y": each} for each in y])
