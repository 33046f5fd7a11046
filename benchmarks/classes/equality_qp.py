"""Quadratic programs with equations alone, of OSQP's benchmark; all data change, the matrices too."""

import numpy as np

from lmd.problems import QuadraticProgram

from .base import Program, Sample, tensor

SIZES = {"small": 10, "medium": 40, "large": 100}


def sample(size, batch, generator):
    n = SIZES[size]
    m = n // 2
    M = generator.normal(size=(batch, n, n)) * (generator.random((batch, n, n)) < 0.5)
    P, q = M @ M.transpose(0, 2, 1) + 1e-2 * np.eye(n), generator.normal(size=(batch, n))
    A, b = generator.normal(size=(batch, m, n)), generator.normal(size=(batch, m))
    tensors = tensor(P, q, A, b)

    def build():
        P, q, A, b = tensors
        return QuadraticProgram(P, q, A=A, l=b, u=b)

    programs = [Program(P=P[i], q=q[i], A=A[i], l=b[i], u=b[i]) for i in range(batch)]
    return Sample(build=build, programs=programs, shape=(n,))
