"""Huber fitting of OSQP's benchmark: rows of its own for each instance, gross errors in the data."""

import numpy as np

from lmd.operators import Matrix
from lmd.problems import Composite
from lmd.terms import Huber, Shifted, Zero

from .base import Program, Sample, tensor

SIZES = {"small": (5, 50), "medium": (20, 100), "large": (50, 300)}  # columns, rows
DELTA = 1.0


def sample(size, batch, generator):
    n, m = SIZES[size]
    A = generator.normal(size=(batch, m, n)) * (generator.random((batch, m, n)) < 0.5)
    gross = np.where(generator.random((batch, m)) < 0.05, 10 * generator.random((batch, m)), 0)
    b = np.einsum("bmn,bn->bm", A, generator.normal(size=(batch, n)) / np.sqrt(n))
    b = b + 0.25 * generator.normal(size=(batch, m)) + gross
    tensors = tensor(A, b, np.zeros((batch, n)))

    def build():
        A, b, zero = tensors
        return Composite(Zero(), (Shifted(Huber(1.0, DELTA), b), Matrix(A)), start=zero)

    P = np.diag(np.concatenate([np.zeros(n), np.full(m, 1 / DELTA), np.zeros(2 * m)]))
    q, low = np.append(np.zeros(n + m), np.ones(2 * m)), np.append(np.full(n + m, -np.inf), np.zeros(2 * m))

    def program(i):  # phi(t) is the least u^2 / 2 delta + r + s with t = u + r - s
        rows = np.hstack([A[i], -np.eye(m), -np.eye(m), np.eye(m)])
        return Program(P=P, q=q, A=rows, l=b[i], u=b[i], low=low)

    def objective(i, x):
        size = np.abs(A[i] @ x - b[i])
        return np.where(size < DELTA, size**2 / (2 * DELTA), size - DELTA / 2).sum()

    programs = [program(i) for i in range(batch)]
    return Sample(build=build, programs=programs, shape=(n,), objective=objective)
