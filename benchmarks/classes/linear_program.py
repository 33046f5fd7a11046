"""Linear programs with inequalities, feasible and bounded; costs and right-hand sides change."""

import numpy as np

from .base import Program, Sample, generator_of

SIZES = {"small": (10, 15), "medium": (40, 60), "large": (100, 150)}  # variables, inequalities


def sample(size, batch, generator):
    (n, m), shared = SIZES[size], generator_of(0)
    A = shared.normal(size=(m, n)) * (shared.random((m, n)) < 0.3)
    inside = np.abs(generator.normal(size=(batch, n)))
    u = inside @ A.T + generator.random((batch, m))
    c = generator.random((batch, n)) - np.maximum(generator.normal(size=(batch, m)), 0) @ A  # y >= 0 bounds it
    zero, below = np.zeros((n, n)), np.full(m, -np.inf)
    programs = [Program(P=zero, q=c[i], A=A, l=below, u=u[i], low=0.0) for i in range(batch)]
    return Sample(reason="no linear term: P has to be positive definite", programs=programs, shape=(n,))
