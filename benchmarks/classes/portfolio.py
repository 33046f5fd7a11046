"""Markowitz portfolios of OSQP's benchmark, factors y = F'x as variables; expected returns change."""

import numpy as np

from lmd.problems import QuadraticProgram

from .base import Program, Sample, generator_of, tensor

SIZES = {"small": (20, 2), "medium": (50, 5), "large": (100, 10)}  # assets, factors


def sample(size, batch, generator):
    (n, k), shared = SIZES[size], generator_of(0)
    F = shared.normal(size=(n, k)) * (shared.random((n, k)) < 0.5)
    P = np.diag(np.append(np.sqrt(k) * shared.random(n) + 1e-3, np.ones(k)))
    q = np.concatenate([-generator.normal(size=(batch, n)), np.zeros((batch, k))], axis=1)
    A = np.block([[F.T, -np.eye(k)], [np.ones((1, n)), np.zeros((1, k))]])
    b, low = np.append(np.zeros(k), 1.0), np.append(np.zeros(n), np.full(k, -np.inf))
    tensors = tensor(P, q, low, A, b)

    def build():
        P, q, low, A, b = tensors
        return QuadraticProgram(P, q, low=low, A=A, l=b, u=b)

    programs = [Program(P=P, q=each, A=A, l=b, u=b, low=low) for each in q]
    return Sample(build=build, programs=programs, shape=(n + k,))
