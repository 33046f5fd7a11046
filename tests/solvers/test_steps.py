import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import lmd
from lmd.errors import InputError
from lmd.mirrors import Euclidean
from lmd.problems import LeastSquares
from lmd.solvers import GradientDescent, LearnedMirrorDescent, LearnedSteps
from lmd.solvers.steps import EXTENSIONS, FixedSteps, as_steps

positive = st.floats(1e-6, 1e3)


@given(positive, st.integers(0, 10_000))
def test_constant(size, k):
    assert FixedSteps(size)(k) == size


@given(positive, st.floats(0.1, 2), st.integers(0, 1000))
def test_decaying(size, power, k):
    assert FixedSteps(size, power)(k) == pytest.approx(size / (k + 1) ** power)


def learned(sizes, extension, power=1.0):
    steps = LearnedSteps(len(sizes), 0.05, extension=extension, power=power)
    with torch.no_grad():
        steps.sizes.copy_(torch.tensor(sizes))
    return steps


class TestExtension:
    SIZES = (0.02, 0.06, 0.01, 0.03)

    @pytest.mark.parametrize("extension", EXTENSIONS)
    def test_the_trained_steps_come_first(self, extension):
        steps = learned(self.SIZES, extension)
        assert_close(torch.stack([steps(k) for k in range(4)]), torch.tensor(self.SIZES))

    @pytest.mark.parametrize(("extension", "size"), [("last", 0.03), ("mean", 0.03), ("min", 0.01), ("max", 0.06)])
    def test_constants(self, extension, size):
        steps = learned(self.SIZES, extension)
        for k in (4, 5, 100):
            assert_close(steps(k).item(), size, rtol=1e-6, atol=0)

    @pytest.mark.parametrize("power", [1.0, 0.5])
    def test_decay(self, power):
        """Iteration k = 0, 1, ... is the (k+1)-th step: c / (k+1)^p with c the mean of j^p t_j."""
        c = sum(j**power * t for j, t in enumerate(self.SIZES, start=1)) / 4
        steps = learned(self.SIZES, "decay", power)
        for k in (4, 5, 100):
            assert_close(steps(k).item(), c / (k + 1) ** power, rtol=1e-6, atol=0)

    @pytest.mark.parametrize("power", [1.0, 0.5])
    def test_decay_goes_on_with_a_sequence_that_decays(self, power):
        steps = learned([0.09 / j**power for j in range(1, 6)], "decay", power)
        for k in range(10):
            assert_close(steps(k).item(), 0.09 / (k + 1) ** power, rtol=1e-6, atol=0)

    @pytest.mark.parametrize("extension", EXTENSIONS)
    def test_is_learned_too(self, extension):
        steps = learned(self.SIZES, extension)
        steps(10).backward()
        assert bool(steps.sizes.grad.any())

    @given(st.lists(st.floats(1e-3, 1e-1), min_size=1, max_size=6), st.sampled_from(EXTENSIONS), st.integers(0, 50))
    def test_steps_never_leave_the_range_of_the_learned_ones_upwards(self, sizes, extension, k):
        assert 0 < learned(sizes, extension)(k).item() <= max(sizes) * (1 + 1e-6)

    def test_the_default_can_be_repeated_where_the_others_diverge(self):
        """Steps as training likes them: most below 2/L = 1, and one far above it that a flat direction wants."""
        problem = LeastSquares(torch.diag(torch.tensor([1.0, 0.3])), torch.zeros(1, 2))
        values = {}
        for extension in ("min", "mean", "max"):
            steps = LearnedSteps(4, 0.5, (0.1, 5.0), extension)
            with torch.no_grad():
                steps.sizes.copy_(torch.tensor([0.4, 0.4, 4.0, 0.4]))
            values[extension] = float(lmd.run(GradientDescent(steps), problem, torch.ones(1, 2), 60).history.values[-1])
        assert LearnedSteps(4).extension == LearnedMirrorDescent(Euclidean()).steps.extension == "min"
        assert values["min"] < 1e-4 and values["mean"] > 1e3 and values["max"] > 1e3


class TestConstraint:
    @given(st.lists(st.floats(-10, 10), min_size=1, max_size=6), st.floats(0, 1), st.floats(1e-3, 1))
    def test_steps_stay_in_their_interval(self, sizes, low, width):
        steps = LearnedSteps(len(sizes), low + width, (low, low + width)).double()
        with torch.no_grad():
            steps.sizes.copy_(torch.tensor(sizes))
        before = steps.sizes.detach().clone()
        steps.constrain_()
        after = steps.sizes.detach()
        assert bool((after >= low).all()) and bool((after <= low + width).all())
        inside = (before >= low) & (before <= low + width)
        assert torch.equal(after[inside], before[inside])

    def test_steps_that_are_not_finite_are_reported(self):
        steps = LearnedSteps(2)
        with torch.no_grad():
            steps.sizes[1] = math.nan
        with pytest.raises(InputError, match=r"^learned steps: got 1 non-finite entries, the first at \(1,\)"):
            steps.constrain_()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: FixedSteps(0), "size: got 0"),
        (lambda: FixedSteps(0.1, -1), "power: got -1"),
        (lambda: LearnedSteps(0), "iterations: got 0"),
        (lambda: LearnedSteps(3, 0.5), r"initial: got 0.5, expected a step inside the interval \(0.001, 0.1\)"),
        (lambda: LearnedSteps(3, 0.05, (-0.1, 0.1)), r"interval: got \(-0.1, 0.1\), .* 0 <= low < high"),
        (lambda: LearnedSteps(3, extension="first"), "extension: got 'first'"),
        (lambda: LearnedSteps(3, power=-1), "power: got -1"),
        (lambda: as_steps("0.1"), "steps: got str, expected a positive number or an lmd.solvers.Steps"),
        (lambda: as_steps(True), "steps: got bool"),
        (lambda: as_steps(-0.1), "steps: got -0.1"),
        (lambda: as_steps(math.nan), "steps: got nan"),
    ],
)
def test_bad_arguments(make, words):
    with pytest.raises(InputError, match="^" + words):
        make()


def test_as_steps():
    rule = FixedSteps(0.1, 0.5)
    assert as_steps(rule) is rule
    assert as_steps(2)(0) == 2.0
