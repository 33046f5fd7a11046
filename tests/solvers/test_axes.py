"""Learned solvers along one axis, two and three, on models and on composites of one's own."""

import pytest
import torch

import lmd
from lmd.errors import CapabilityError
from lmd.operators import Differences, Identity
from lmd.problems import Composite, Family, Lasso, TVDenoising, TVInpainting
from lmd.solvers import PDHG, LearnedDual, LearnedPDHG, LearnedSaddle
from lmd.terms import L1, Box, GroupNorm, Huber, Shifted, Squares

SIZES = {1: (40,), 2: (9, 8), 3: (5, 6, 4)}
AXES = pytest.mark.parametrize("axes", SIZES)


def noisy(batch, axes, generator, channels=(2,)):
    """Steps along the last axis, with noise."""
    size = SIZES[axes]
    steps = torch.linspace(0, 2, size[-1]).round() / 2
    return steps + 0.2 * torch.randn(batch, *channels, *size, generator=generator)


def denoising(batch, axes, generator):
    return TVDenoising(noisy(batch, axes, generator), 0.3, isotropic=axes == 3)


def inpainting(batch, axes, generator):
    y = noisy(batch, axes, generator)
    mask = (torch.rand(batch, 1, *SIZES[axes], generator=generator) < 0.7).float()
    mask.flatten(1)[:, 0] = 1
    return TVInpainting(y, mask, 0.3, spacing=2.0 if axes == 3 else None)


def own(batch, axes, generator):
    """No channels, and a smoothed TV."""
    y = noisy(batch, axes, generator, ())
    return Composite(Squares(y), (Huber(0.3, delta=0.01), Differences(SIZES[axes])), start=y)


def robust(batch, axes, generator):
    """Huber's function of the distance to the data, over a box."""
    y = noisy(batch, axes, generator)
    group = (GroupNorm(0.3, axes=2), Differences(SIZES[axes]))
    return Composite(Box(0.0, 1.0), (Shifted(Huber(1.0, 0.1), y), Identity()), group, start=y.clamp(0, 1))


PAIRS = {
    "dual": (lambda axes: LearnedDual(3, 3, axes=axes), denoising),
    "dual, own": (lambda axes: LearnedDual(3, 3, axes=axes), own),
    "saddle": (lambda axes: LearnedSaddle(3, 3, 3, axes=axes), inpainting),
    "saddle, own": (lambda axes: LearnedSaddle(3, 3, 3, masked=False, settle=1.0, axes=axes), robust),
    "pdhg": (lambda axes: LearnedPDHG(3), own),
}


class Drawn(Family):
    def __init__(self, draw, axes):
        self.draw, self.axes = draw, axes

    def sample(self, batch, generator):
        problem = self.draw(batch, self.axes, generator)
        return problem, problem.start()


@AXES
@pytest.mark.parametrize("name", PAIRS)
def test_a_few_updates_help_and_the_certificate_holds(name, axes):
    make, draw = PAIRS[name]
    solver, family = make(axes), Drawn(draw, axes)
    problem, x0 = family.sample(4, torch.Generator().manual_seed(5))
    before = lmd.run(solver, problem, x0, iterations=3).values.mean()
    lmd.train(solver, family, updates=10, batch=4, value_weights="last", learning_rate=1e-3, progress=False)
    result = lmd.run(solver, problem, x0, iterations=3)
    assert float(result.values.mean()) < float(before)
    best = lmd.solve(problem.double(), 1e-5, solver=PDHG())
    gap = problem.double().value(result.x.double()) - best.values
    assert bool((result.certificate.bound >= gap).all()) and bool(torch.isfinite(result.certificate.bound).all())
    late = lmd.run(solver, problem, x0, tolerance=1e-3)
    assert {status.name for status in late.status} == {"TOLERANCE_REACHED"}


def test_what_they_cannot_run_on_is_refused():
    problem = denoising(1, 3, torch.Generator().manual_seed(0))
    with pytest.raises(CapabilityError, match=r"differences along 3 axes .*expected one with differences along 2"):
        lmd.run(LearnedDual(2), problem)
    with pytest.raises(CapabilityError, match="which has no differences"):
        lmd.run(LearnedSaddle(2, masked=False), Lasso(torch.eye(2), torch.ones(1, 2), 1.0))
    with pytest.raises(CapabilityError, match="which has no mask"):
        lmd.run(LearnedSaddle(2, axes=3), problem)
    y = torch.rand(1, 1, 4, 4)
    fused = Composite(Squares(y), (L1(0.1), Differences((4, 4))), (L1(0.2), Identity()), start=y)
    with pytest.raises(CapabilityError, match=r"no differences on a grid \(Stack\)"):
        lmd.run(LearnedDual(2), fused)
    with pytest.raises(CapabilityError, match="which has no gradient_smoothness"):
        lmd.run(LearnedSaddle(2, masked=False), fused)
