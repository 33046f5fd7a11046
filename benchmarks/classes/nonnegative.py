"""Nonnegative least squares; data change."""

import math

import numpy as np

from lmd.operators import Matrix
from lmd.problems import Composite
from lmd.terms import Box, Squares

from .base import Program, Sample, generator_of, tensor

SIZES = {"small": (20, 10), "medium": (80, 40), "large": (200, 100)}  # rows, columns


def sample(size, batch, generator):
    (m, n), shared = SIZES[size], generator_of(0)
    A = shared.random((m, n))
    b = np.maximum(generator.normal(size=(batch, n)), 0) @ A.T + 0.5 * generator.normal(size=(batch, m))
    tensors = tensor(A, b, np.zeros((batch, n)))

    def build():
        A, b, zero = tensors
        return Composite(Box(0.0, math.inf), (Squares(b, 0.5), Matrix(A)), start=zero)

    P = A.T @ A
    programs = [Program(P=P, q=-each @ A, r=each @ each / 2, low=0.0) for each in b]
    arrays = [{"A": A, "b": each} for each in b]
    return Sample(build=build, programs=programs, shape=(n,), kind="nonnegative", arrays=arrays)
