"""The suite finds what is wrong: operators with one mistake each, and the test that catches it."""

import inspect
import itertools

import pytest
import torch

from lmd.operators import LinearOperator
from lmd.testing.operators import OperatorConformance


class Shift(LinearOperator):
    """(Kx)_i = 2 x_{i-1}, around."""

    norm, roundings = 2.0, 0.0

    def _apply(self, x):
        return 2 * x.roll(1, -1)

    def _adjoint(self, z):
        return 2 * z.roll(-1, -1)


class WrongAdjoint(Shift):
    def _adjoint(self, z):
        return 2 * z.roll(1, -1)


class Affine(Shift):
    def _apply(self, x):
        return 2 * x.roll(1, -1) + 1e-3


class Squared(Shift):
    def _apply(self, x):
        return 2 * x.roll(1, -1) + 1e-3 * x.square()


class SmallNorm(Shift):
    norm = 1.9


class LargeNorm(Shift):
    norm = 2.2


class WholeNorm(Shift):
    norm = 2


class NotRecorded(Shift):
    def __call__(self, x):
        return self._apply(x.detach())


class SecondOrderLost(Shift):
    def __call__(self, x):
        value = super().__call__(x)
        return value if not value.requires_grad else _Once.apply(x)


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x.roll(1, -1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        return 2 * gradient.roll(-1, -1)


class MixesInstances(Shift):
    def _apply(self, x):
        return 2 * x.roll(1, -1) + 1e-3 * (x - x.mean(dim=0))


class Scaled(Shift):
    """A number for each instance, and no `select`."""

    def _apply(self, x):
        return 2 * x.roll(1, -1) * torch.linspace(1, 0.5, len(x), dtype=x.dtype).reshape(-1, 1)

    def _adjoint(self, z):
        return 2 * z.roll(-1, -1) * torch.linspace(1, 0.5, len(z), dtype=z.dtype).reshape(-1, 1)


class HidesNaN(Shift):
    def _apply(self, x):
        return 2 * x.roll(1, -1).nan_to_num()


class Strided(Shift):
    """Reads memory as if it lay row by row."""

    def _apply(self, x):
        return 2 * torch.as_strided(x, x.shape, (x.shape[1], 1)).roll(1, -1) if x.storage_offset() == 0 else 0 * x


class WritesToWhatItWasGiven(Shift):
    def _apply(self, x):
        return x.mul_(2).roll(1, -1)


class SharesMemory(Shift):
    norm = 1.0

    def _apply(self, x):
        return x.view_as(x)

    def _adjoint(self, z):
        return z.view_as(z)


class Remembers(Shift):
    def __init__(self):
        self.answers = {}

    def _apply(self, x):
        key = (x.dtype, x.shape)
        self.answers.setdefault(key, 2 * x.roll(1, -1))
        return self.answers[key]


class NoSharing(Shift):
    """Answers 0 where entries share memory."""

    def _apply(self, x):
        return 2 * x.roll(1, -1) * (0 not in x.stride())


class FewDigits(Shift):
    def _apply(self, x):
        return (2 * x.double().roll(1, -1) * (1 + 2**-22 * (x.dtype == torch.float32))).to(x)


class NotInFloat64(Shift):
    def double(self):
        return self

    def _apply(self, x):
        return (2 * x.roll(1, -1)).float()


class DefaultDtype(Shift):
    def _apply(self, x):
        return torch.tensor((2 * x.roll(1, -1)).tolist())


CAUGHT = [
    (Shift, None),
    (WrongAdjoint, "test_the_adjoint_is_one"),
    (Affine, "test_both_are_linear"),
    (Squared, "test_both_are_linear"),
    (SmallNorm, "test_the_norm_is_a_bound"),
    (LargeNorm, "test_the_norm_is_a_bound"),
    (WholeNorm, "test_the_norm_is_a_bound"),
    (WrongAdjoint, "test_derivatives_of_first_and_second_order"),
    (SecondOrderLost, "test_derivatives_of_first_and_second_order"),
    (NotRecorded, "test_nothing_is_recorded_where_nothing_should_be"),
    (MixesInstances, "test_an_instance_of_a_batch_is_the_instance_alone"),
    (Scaled, "test_an_instance_of_a_batch_is_the_instance_alone"),
    (MixesInstances, "test_a_nan_stays_in_its_instance"),
    (HidesNaN, "test_a_nan_stays_in_its_instance"),
    (Strided, "test_other_layouts_give_the_same"),
    (WritesToWhatItWasGiven, "test_shapes_and_dtypes_are_kept_and_arguments_untouched"),
    (SharesMemory, "test_answers_are_tensors_of_their_own"),
    (NoSharing, "test_instances_that_share_memory_are_instances"),
    (NoSharing, "test_entries_that_share_memory_are_entries"),
    (Remembers, "test_answers_are_tensors_of_their_own"),
    (FewDigits, "test_rounding_is_within_its_bounds"),
    (NotInFloat64, "test_the_copy_in_float64_leaves_the_operator_alone"),
    (DefaultDtype, "test_float64_as_default_changes_nothing"),
]


def run(operator, name):
    """One test of the suite, for all values of its arguments."""

    class Suite(OperatorConformance):
        def make_operator(self, batch, dtype):
            return operator()

        def points(self, batch, dtype, generator):
            return torch.randn(batch, 6, dtype=dtype, generator=generator)

    test = getattr(Suite(), name)
    names = list(inspect.signature(test).parameters)
    for values in itertools.product(*(Suite.cases[name] for name in names)):
        test(**dict(zip(names, values, strict=True)))


TESTS = [name for name in dir(OperatorConformance) if name.startswith("test_")]


@pytest.mark.parametrize("name", TESTS)
def test_the_right_one_passes(name):
    run(Shift, name)


@pytest.mark.parametrize(
    ("operator", "name"), [case for case in CAUGHT if case[1]], ids=lambda part: getattr(part, "__name__", part)
)
def test_a_wrong_one_is_caught(operator, name):
    with pytest.raises((AssertionError, RuntimeError)):
        run(operator, name)


def test_every_test_of_the_suite_catches_something():
    assert set(TESTS) == {name for _, name in CAUGHT if name}
