"""Poisson inverse problems: nonnegative intensities seen through blurs, with a background; counts change."""

import math

import clarabel
import numpy as np
from scipy.special import xlogy

from lmd.operators import Matrix
from lmd.problems import Composite
from lmd.terms import Box, KullbackLeibler

from .base import Program, Reference, Sample, solve_program, tensor

SIZES = {"small": 10, "medium": 30, "large": 80}
BACKGROUND = 1.0


def sample(size, batch, generator):
    n = SIZES[size]
    A = np.exp(-0.5 * np.subtract.outer(np.arange(n), np.arange(n)) ** 2)
    truth = 20 * generator.random((batch, n)) * (generator.random((batch, n)) < 0.3)
    y = generator.poisson(truth @ A.T + BACKGROUND).astype(float)
    tensors = tensor(A, y, np.ones((batch, n)))

    def build():
        A, y, one = tensors
        return Composite(Box(0.0, math.inf), (KullbackLeibler(y, BACKGROUND), Matrix(A)), start=one)

    G, h = np.zeros((n, 3, 2 * n)), np.zeros((n, 3))  # of x and t: exp(t) <= Ax + background
    G[np.arange(n), 0, n + np.arange(n)], G[:, 2, :n] = -1, -A
    h[:, 1], h[:, 2] = 1, BACKGROUND
    G, h, cones = G.reshape(-1, 2 * n), h.ravel(), (clarabel.ExponentialConeT(),) * n
    low = np.append(np.zeros(n), np.full(n, -np.inf))

    def program(i):
        q, r = np.append(A.sum(axis=0), -y[i]), n * BACKGROUND + (xlogy(y[i], y[i]) - y[i]).sum()
        return Program(P=np.zeros((2 * n, 2 * n)), q=q, r=r, low=low, G=G, h=h, cones=cones)

    programs = [program(i) for i in range(batch)]

    def solve(i):  # Newton's method on the entries that are not 0; f(x*) >= f(x) + g'(x* - x)
        x = np.maximum(solve_program(programs[i]).x[:n], 0)
        free = x > np.maximum(gradient(i, x)[0], 0)
        x = np.where(free, x, 0)
        for _ in range(20):
            g, H = gradient(i, x)
            x[free] = np.maximum(x[free] - np.linalg.lstsq(H[np.ix_(free, free)], g[free], rcond=1e-14)[0], 0)
        g, value = gradient(i, x)[0], objective(i, x)
        return Reference(x, value, value - (np.maximum(g, 0) @ x + np.maximum(-g, 0).sum() * (1 + 2 * x.max())))

    def gradient(i, x):
        mean = A @ x + BACKGROUND
        return A.T @ (1 - y[i] / mean), (A.T * (y[i] / mean**2)) @ A

    def objective(i, x):
        mean = A @ np.maximum(x, 0) + BACKGROUND
        return (mean - xlogy(y[i], mean) + xlogy(y[i], y[i]) - y[i]).sum() + 1e6 * np.maximum(-x, 0).sum()

    return Sample(
        build=build,
        programs=programs,
        shape=(n,),
        objective=objective,
        solve=solve,
        kind="poisson",
        arrays=[{"A": A, "y": each, "background": BACKGROUND} for each in y],
        point=lambda generator: generator.random(n),
    )
