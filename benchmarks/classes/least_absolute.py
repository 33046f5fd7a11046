"""Least absolute deviations, a linear program; rows and data change."""

import numpy as np

from lmd.operators import Matrix
from lmd.problems import Composite
from lmd.terms import Absolute, Zero

from .base import Program, Sample, tensor

SIZES = {"small": (4, 20), "medium": (10, 60), "large": (20, 200)}  # columns, rows


def sample(size, batch, generator):
    n, m = SIZES[size]
    A = generator.normal(size=(batch, m, n))
    b = np.einsum("bmn,bn->bm", A, generator.normal(size=(batch, n))) + generator.laplace(size=(batch, m))
    tensors = tensor(A, b, np.zeros((batch, n)))

    def build():
        A, b, zero = tensors
        return Composite(Zero(), (Absolute(b), Matrix(A)), start=zero)

    def program(i):  # of x, and the parts above and below of Ax - b
        q, low = np.append(np.zeros(n), np.ones(2 * m)), np.append(np.full(n, -np.inf), np.zeros(2 * m))
        rows = np.hstack([A[i], -np.eye(m), np.eye(m)])
        return Program(P=np.zeros((n + 2 * m, n + 2 * m)), q=q, A=rows, l=b[i], u=b[i], low=low)

    def objective(i, x):
        return np.abs(A[i] @ x - b[i]).sum()

    programs = [program(i) for i in range(batch)]
    arrays = [{"A": A[i], "b": b[i]} for i in range(batch)]
    return Sample(build=build, programs=programs, shape=(n,), objective=objective, kind="least_absolute", arrays=arrays)
