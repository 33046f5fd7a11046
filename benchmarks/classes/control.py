"""Receding-horizon control with the states eliminated, inputs in a box; the state changes."""

import numpy as np

from lmd.problems import ControlFamily, QuadraticProgram

from .base import Program, Sample, tensor

SIZES = {"small": 6, "medium": 24, "large": 48}  # steps; twice as many variables


def sample(size, batch, generator):
    family = ControlFamily(horizon=SIZES[size])
    P, n, limit = family.P.double().numpy(), len(family.P), family.limit
    q = generator.normal(size=(batch, len(family.from_state))) @ family.from_state.double().numpy()
    tensors = tensor(P, q)
    programs = [Program(P=P, q=each, low=np.full(n, -limit), high=np.full(n, limit)) for each in q]
    return Sample(build=lambda: QuadraticProgram(*tensors, -limit, limit), programs=programs, shape=(n,))
