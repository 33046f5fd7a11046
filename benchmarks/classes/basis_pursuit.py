"""Basis pursuit: the least l1 norm over equations; data change."""

import numpy as np

from lmd.operators import Matrix
from lmd.problems import Composite
from lmd.terms import L1, Box

from .base import Program, Sample, generator_of, tensor

SIZES = {"small": (10, 20), "medium": (30, 80), "large": (60, 200)}  # rows, columns


def sample(size, batch, generator):
    (m, n), shared = SIZES[size], generator_of(0)
    A = shared.normal(size=(m, n)) / np.sqrt(m)
    b = (generator.normal(size=(batch, n)) * (generator.random((batch, n)) < 0.1) + 1e-2) @ A.T
    tensors = tensor(A, b, np.zeros((batch, n)))

    def build():
        A, b, zero = tensors
        return Composite(L1(1.0), (Box(b, b), Matrix(A)), start=zero)

    eye, zero = np.eye(n), np.zeros((2 * n, 2 * n))  # of x and t >= |x|
    rows = np.block([[A, np.zeros((m, n))], [eye, -eye], [-eye, -eye]])

    def program(i):
        l, u = np.append(b[i], np.full(2 * n, -np.inf)), np.append(b[i], np.zeros(2 * n))
        return Program(P=zero, q=np.append(np.zeros(n), np.ones(n)), A=rows, l=l, u=u)

    def objective(i, x):
        return np.abs(x).sum()

    programs = [program(i) for i in range(batch)]
    return Sample(build=build, programs=programs, shape=(n,), objective=objective, hard=m)
