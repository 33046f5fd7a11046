"""The suite itself: it passes a mirror that refines its inverse, and notices each way of being wrong."""

import pytest
import torch

from lmd.mirrors import DiagonalQuadratic, Euclidean, EuclideanBox
from lmd.mirrors.base import norm_of
from lmd.testing.mirrors import MirrorConformance

DIAGONAL = (0.5, 1.0, 2.0)
F32, F64 = torch.float32, torch.float64


class RefinedQuadratic(DiagonalQuadratic):
    """A diagonal quadratic that has forgotten its inverse, and goes there by steps of gradient descent."""

    is_exact = False

    def to_primal(self, y, tolerance=None):
        x = y / self.diagonal.mean()
        for _ in range(0 if tolerance is None else 1000):
            residual = y - self.to_dual(x)
            far = norm_of(residual, "l2") > tolerance
            if not bool(far.any()):
                break
            x = torch.where(far[:, None], x + residual / self.diagonal.max(), x)
        return x


class TestRefinedQuadratic(MirrorConformance):
    def make_mirror(self, dtype):
        return RefinedQuadratic(3, diagonal=torch.tensor(DIAGONAL, dtype=dtype))

    def points(self, batch, dtype, generator):
        return torch.randn(batch, 3, dtype=dtype, generator=generator)


def method(name, answer):
    """A class attribute that replaces a method of a mirror by `answer(mirror, original, *arguments)`."""

    def replaced(kind):
        original = getattr(kind, name)
        return {
            name: lambda self, *arguments, **options: answer(self, lambda *a: original(self, *a, **options), *arguments)
        }

    return replaced


def constant(name, value):
    return lambda kind: {name: property(lambda self: value)}


def halved_without_gradient(self, original, *arguments):
    return original(*arguments).detach()


def across_the_batch(self, original, x, *more):
    return original(x, *more) + 0.01 * x.nan_to_num().mean()


def in_place(self, original, x):
    y = original(x)
    x += 1
    return y


WRONG = [
    # what is wrong, the mirror, the test that has to notice, its arguments
    ("gradient", method("to_dual", lambda s, f, x: 1.01 * f(x)), "to_dual_is_the_gradient_of_the_potential", (2,)),
    ("concave", method("potential", lambda s, f, x: -f(x)), "divergence_agrees_with_its_definition", (F64, 7)),
    (
        "not strongly",
        constant("strong_convexity", torch.tensor(0.9)),
        "divergence_agrees_with_its_definition",
        (F64, 7),
    ),
    ("not monotone", method("to_dual", lambda s, f, x: -f(x)), "to_dual_is_the_gradient_of_the_potential", (2,)),
    (
        "not strongly",
        constant("strong_convexity", torch.tensor(0.9)),
        "divergence_agrees_with_its_definition",
        (F64, 7),
    ),
    (
        "divergence",
        method("divergence", lambda s, f, x, z: 2 * f(x, z)),
        "divergence_agrees_with_its_definition",
        (F32, 1),
    ),
    (
        "shape",
        method("divergence", lambda s, f, x, z: f(x, z).sum()),
        "divergence_agrees_with_its_definition",
        (F32, 2),
    ),
    ("negative", constant("strong_convexity", torch.tensor(-1.0)), "divergence_agrees_with_its_definition", (F64, 2)),
    ("a vector", constant("strong_convexity", torch.ones(3)), "divergence_agrees_with_its_definition", (F64, 2)),
    ("too smooth", constant("smoothness", torch.tensor(0.6)), "divergence_agrees_with_its_definition", (F64, 7)),
    ("inverse", method("to_primal", lambda s, f, y: f(y) + 0.01), "to_primal_undoes_to_dual", (F32, 1)),
    (
        "inverse",
        method("to_primal", lambda s, f, y: f(y) + 0.01),
        "to_primal_solves_its_variational_inequality",
        (F32, 1),
    ),
    (
        "clips",
        method("clipped", lambda s, f, y: torch.ones(len(y))),
        "what_is_made_of_the_maps_agrees_with_them",
        (F32, 2),
    ),
    (
        "norm",
        method("inconsistency", lambda s, f, x, n="l1": f(x) + 1),
        "what_is_made_of_the_maps_agrees_with_them",
        (F32, 2),
    ),
    (
        "dtype",
        method("to_dual", lambda s, f, x: f(x).double()),
        "shapes_and_dtypes_are_kept_and_arguments_untouched",
        (F32, 2),
    ),
    (
        "shape",
        method("potential", lambda s, f, x: f(x)[:, None]),
        "shapes_and_dtypes_are_kept_and_arguments_untouched",
        (F32, 2),
    ),
    ("in place", method("to_dual", in_place), "shapes_and_dtypes_are_kept_and_arguments_untouched", (F32, 2)),
    ("mixed", method("to_dual", across_the_batch), "an_instance_of_a_batch_is_the_instance_alone", (F64,)),
    ("mixed", method("to_primal", across_the_batch), "an_instance_of_a_batch_is_the_instance_alone", (F64,)),
    ("NaN spreads", method("to_dual", lambda s, f, x: f(x) + 0 * x.mean()), "a_nan_stays_in_its_instance", (F64,)),
    ("NaN hidden", method("to_dual", lambda s, f, x: f(x.nan_to_num())), "a_nan_stays_in_its_instance", (F64,)),
    (
        "rounding",
        method("to_dual", lambda s, f, x: f(x) + (x.dtype == F32) * 0.01),
        "float32_agrees_with_float64",
        (2,),
    ),
    ("detached", method("to_dual", halved_without_gradient), "derivatives_in_the_parameters", (2,)),
    ("detached", method("to_primal", halved_without_gradient), "derivatives_in_the_parameters", (2,)),
    (
        "floor",
        method("constrain_", lambda s, f: s.diagonal.data.clamp_(min=1)),
        "constraints_leave_a_valid_mirror",
        (F32,),
    ),
    ("unmended", method("constrain_", lambda s, f: None), "constraints_leave_a_valid_mirror", (F32,)),
    ("config", method("config", lambda s, f: {"dimension": 2}), "saved_and_loaded_maps_are_the_same", (F32,)),
]


def suite_of(kind, make, points):
    class Suite(MirrorConformance):
        def make_mirror(self, dtype):
            return make(kind, dtype)

        def points(self, batch, dtype, generator):
            return points(batch, dtype, generator)

    return Suite()


def test_named(suite, name):
    (found,) = [method for method in dir(suite) if method.startswith(f"test_{name}")]
    return getattr(suite, found)


test_named.__test__ = False


@pytest.mark.parametrize(
    ("change", "name", "arguments"), [row[1:] for row in WRONG], ids=[f"{row[0]}-{row[2]}" for row in WRONG]
)
def test_a_mirror_that_is_wrong_is_noticed(change, name, arguments):
    def make(kind, dtype):
        return kind(3, diagonal=torch.tensor(DIAGONAL, dtype=dtype))

    def points(batch, dtype, generator):
        return torch.randn(batch, 3, dtype=dtype, generator=generator)

    test_named(suite_of(DiagonalQuadratic, make, points), name)(*arguments)  # right before it is made wrong
    wrong = type("WrongQuadratic", (DiagonalQuadratic,), change(DiagonalQuadratic))
    with pytest.raises((AssertionError, RuntimeError)):
        test_named(suite_of(wrong, make, points), name)(*arguments)


class ForgetfulMirror(Euclidean):
    """Psi(x) = scale/2 ||x||^2 with a scale that is in no state dict and no configuration."""

    def __init__(self, scale=1.0):
        super().__init__()
        self.scale = scale

    def config(self):
        return {}

    def to_dual(self, x):
        return self.scale * x


@pytest.mark.parametrize(
    ("change", "name", "arguments"),
    [
        (method("to_dual", lambda s, f, x: x), "a_point_outside_the_domain_is_refused", (F32, 1)),
        (method("to_dual", lambda s, f, x: f(x) / (1 - x)), "the_boundary_belongs_to_the_domain", (F64, 7)),
        (method("to_primal", lambda s, f, y: y), "to_primal_solves_its_variational_inequality", (F32, 7)),
        (method("to_primal", lambda s, f, y: 0 * y + 0.5), "to_primal_solves_its_variational_inequality", (F32, 7)),
    ],
    ids=["no check", "infinite edge", "leaves", "lazy"],
)
def test_a_mirror_with_a_wrong_domain_is_noticed(change, name, arguments):
    def points(batch, dtype, generator):
        return torch.rand(batch, 3, dtype=dtype, generator=generator)

    test_named(suite_of(EuclideanBox, lambda kind, dtype: kind(), points), name)(*arguments)
    wrong = type("WrongBox", (EuclideanBox,), change(EuclideanBox))
    with pytest.raises((AssertionError, ValueError, pytest.fail.Exception)):
        test_named(suite_of(wrong, lambda kind, dtype: kind(), points), name)(*arguments)


def test_a_mirror_that_forgets_is_noticed():
    def points(batch, dtype, generator):
        return torch.randn(batch, 3, dtype=dtype, generator=generator)

    suite = suite_of(ForgetfulMirror, lambda kind, dtype: kind(2.0), points)
    with pytest.raises(AssertionError):
        suite.test_saved_and_loaded_maps_are_the_same(F32)


def test_a_refinement_that_stops_too_early_is_noticed():
    early = type(
        "EarlyQuadratic", (RefinedQuadratic,), {"to_primal": lambda s, y, tolerance=None: y / s.diagonal.mean()}
    )
    suite = suite_of(
        early, lambda kind, dtype: kind(3, diagonal=torch.tensor(DIAGONAL, dtype=dtype)), TestRefinedQuadratic().points
    )
    for name in ("to_primal_undoes_to_dual", "to_primal_solves_its_variational_inequality"):
        with pytest.raises(AssertionError, match="the dual residual"):
            test_named(suite, name)(F64, 2)
    with pytest.raises(AssertionError, match="the dual residual"):
        suite.test_a_nan_does_not_keep_others_from_being_refined(F64)


def test_the_suite_says_what_to_give_it():
    with pytest.raises(NotImplementedError, match="which mirror"):
        MirrorConformance().make_mirror(F32)
    with pytest.raises(NotImplementedError, match="points"):
        MirrorConformance().points(1, F32, torch.Generator())
