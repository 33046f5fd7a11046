"""Network flow with quadratic costs and capacities; supplies and prices change."""

import numpy as np

from lmd.problems import QuadraticProgram

from .base import Program, Sample, generator_of, tensor

SIZES = {"small": (6, 15), "medium": (20, 60), "large": (50, 200)}  # nodes, edges


def sample(size, batch, generator):
    (nodes, edges), shared = SIZES[size], generator_of(0)
    tails = np.append(np.arange(nodes), shared.integers(nodes, size=edges - nodes))
    steps = np.append(np.ones(nodes, dtype=int), shared.integers(1, nodes, size=edges - nodes))  # a ring, and more
    A = np.zeros((nodes, edges))
    A[tails, np.arange(edges)], A[(tails + steps) % nodes, np.arange(edges)] = 1, -1
    high = 1 + shared.random(edges)
    supply = (0.7 * high * generator.random((batch, edges))) @ A.T  # which some flow below the capacities meets
    P, q = np.diag(0.1 + shared.random(edges)), generator.random((batch, edges))
    tensors = tensor(P, q, high, A, supply)

    def build():
        P, q, high, A, supply = tensors
        return QuadraticProgram(P, q, low=0.0, high=high, A=A, l=supply, u=supply)

    programs = [Program(P=P, q=q[i], A=A, l=supply[i], u=supply[i], low=0.0, high=high) for i in range(batch)]
    return Sample(build=build, programs=programs, shape=(edges,))
