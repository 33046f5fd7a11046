"""Random quadratic programs of OSQP's benchmark: ten inequalities for each variable; q and the bounds change."""

import numpy as np

from lmd.problems import QuadraticProgram

from .base import Program, Sample, generator_of, tensor

SIZES = {"small": 10, "medium": 30, "large": 80}


def sample(size, batch, generator):
    n, shared = SIZES[size], generator_of(0)
    M = shared.normal(size=(n, n)) * (shared.random((n, n)) < 0.5)
    P, A = M @ M.T + 1e-2 * np.eye(n), shared.normal(size=(10 * n, n)) * (shared.random((10 * n, n)) < 0.15)
    q, l, u = generator.normal(size=(batch, n)), -generator.random((batch, 10 * n)), generator.random((batch, 10 * n))
    tensors = tensor(P, q, A, l, u)

    def build():
        P, q, A, l, u = tensors
        return QuadraticProgram(P, q, A=A, l=l, u=u)

    programs = [Program(P=P, q=q[i], A=A, l=l[i], u=u[i]) for i in range(batch)]
    return Sample(build=build, programs=programs, shape=(n,))
