"""Resource allocation: shares of each agent on a simplex, convex costs of the loads; demands and prices change."""

import numpy as np

from lmd.problems import QuadraticProgram

from .base import Program, Sample, generator_of, tensor

SIZES = {"small": (4, 4), "medium": (10, 6), "large": (20, 10)}  # agents, resources


def sample(size, batch, generator):
    (a, k), shared = SIZES[size], generator_of(0)
    loads = np.kron(shared.random((1, a)) + 0.5, np.eye(k))  # of x, agent by agent
    P = loads.T @ ((1 + shared.random(k))[:, None] * loads) + 0.01 * np.eye(a * k)
    q, A, one = 3 * generator.random((batch, a * k)), np.kron(np.eye(a), np.ones((1, k))), np.ones(a)
    tensors = tensor(P, q, A, one)

    def build():
        P, q, A, one = tensors
        return QuadraticProgram(P, q, low=0.0, A=A, l=one, u=one)

    programs = [Program(P=P, q=each, A=A, l=one, u=one, low=0.0) for each in q]
    return Sample(build=build, programs=programs, shape=(a * k,))
