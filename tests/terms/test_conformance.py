"""The suite itself: it passes a term that has little, and notices each way of being wrong."""

import pytest
import torch

from lmd.errors import CapabilityError
from lmd.terms import L1, Box, Squares, Term
from lmd.terms.wrappers import Boxed
from lmd.testing.terms import OFFSET, TermConformance, normal, units

F32, F64 = torch.float32, torch.float64


class Logistic(Term):
    """sum log(1 + exp(-z)), the logistic loss: a term of one's own, with what has a closed form, and no prox."""

    @property
    def smoothness(self):
        return 0.25

    def value(self, z):
        return torch.nn.functional.softplus(-z).flatten(1).sum(dim=1)

    def conjugate(self, p):
        return (torch.xlogy(-p, -p) + torch.xlogy(1 + p, 1 + p)).flatten(1).sum(dim=1)

    def project(self, p):
        return p.clamp(-1, 0)


class TestLogistic(TermConformance):
    def make_term(self, batch, dtype, generator):
        return Logistic()

    def points(self, term, batch, dtype, generator):
        return normal(batch, 2, 3, dtype=dtype, generator=generator)


@pytest.mark.parametrize("name", ["prox", "conjugate_prox", "tilted_minimiser", "rounding", "gauge"])
def test_what_a_term_lacks_is_named(name):
    z = torch.zeros(1, 2)
    more = {"prox": (1.0,), "conjugate_prox": (1.0,), "rounding": (z, z[:, 0], z[:, 0], z[:, 0])}.get(name, ())
    lacking = "prox" if name == "conjugate_prox" else name
    message = rf"\Aterm: got Logistic, which has no {lacking}, expected a term with {lacking}\Z"
    with pytest.raises(CapabilityError, match=message):
        getattr(Logistic(), name)(z, *more)


def method(name, answer):
    """A class attribute that replaces a method of a term by `answer(original, *arguments)`."""

    def replaced(kind):
        original = getattr(kind, name)

        def wrong(self, *arguments, **options):
            return answer(lambda *given: original(self, *given, **options), *arguments)

        return {name: wrong}

    return replaced


def constant(name, value):
    return lambda kind: {name: property(lambda self: value)}


def squares(kind, batch, dtype, generator):
    y = normal(batch, 2, 3, dtype=dtype, generator=generator)
    scale = torch.linspace(0.5, 2.0, batch, dtype=F64).to(dtype)
    return kind(y, scale)


def l1(kind, batch, dtype, generator):
    return kind(torch.linspace(0.5, 2.0, batch, dtype=F64).to(dtype))


def boxed(kind, batch, dtype, generator):
    return kind(Squares(normal(batch, 2, 3, dtype=dtype, generator=generator)), -9.0, 9.0)


def box(kind, batch, dtype, generator):
    return kind(-9.0, 9.0)


def in_place(original, z, *more):
    answer = original(z, *more).clone()
    z += 1
    return answer


def cancelling(original, z, p):
    return original(z, p) + 1e-3 * z.flatten(1).sum(dim=1)


def detached(original, z, *more):
    return original(z, *more).detach()


def of_the_batch(original, z, *more):
    return original(z, *more) + 0.01 * z.mean()


def default_dtype_of(original, z, *more):
    return original(z, *more) * torch.ones(1)


WRONG = [
    # what is wrong, of which term, the test that has to notice, its arguments
    (
        "concave",
        Squares,
        squares,
        method("value", lambda f, z: -f(z)),
        "subgradient_inequality_and_its_constants",
        (3,),
    ),
    (
        "not so strongly",
        Squares,
        squares,
        constant("strong_convexity", 4.1),
        "subgradient_inequality_and_its_constants",
        (3,),
    ),
    ("rough", Squares, squares, constant("smoothness", 0.5), "subgradient_inequality_and_its_constants", (3,)),
    (
        "slope",
        Squares,
        squares,
        method("subgradient", lambda f, z: 1.1 * f(z)),
        "subgradient_inequality_and_its_constants",
        (3,),
    ),
    (
        "slope",
        L1,
        l1,
        method("subgradient", lambda f, z: 0.9 * f(z)),
        "subgradient_is_the_derivative_where_there_is_one",
        (3,),
    ),
    ("prox", L1, l1, method("prox", lambda f, z, s: f(z, 1.01 * s)), "prox_minimises", (0.3, 3)),
    ("prox", L1, l1, method("prox", lambda f, z, s: f(z, 1.01 * s)), "prox_minimises", (0.3, 3)),
    (
        "prox",
        Squares,
        squares,
        method("prox", lambda f, z, s: f(z, 1.01 * s)),
        "prox_minimises",
        (None, 3),
    ),
    (
        "prox of its dual",
        Squares,
        squares,
        method("conjugate_prox", lambda f, p, s: f(p, 1.01 * s)),
        "conjugate_prox_minimises",
        (3,),
    ),
    (
        "short",
        L1,
        l1,
        method("project", lambda f, p: 0.99 * f(p)),
        "project_is_the_nearest_point_and_leaves_what_is_inside",
        (3,),
    ),
    (
        "conjugate",
        Squares,
        squares,
        method("conjugate", lambda f, p: f(p) + 1e-3),
        "residual_is_that_of_fenchel_and_young",
        (F64, 3),
    ),
    ("residual", Squares, squares, method("residual", cancelling), "residual_is_that_of_fenchel_and_young", (F64, 3)),
    (
        "negative",
        L1,
        l1,
        method("residual", lambda f, z, p: f(z, p) - 9),
        "residual_is_that_of_fenchel_and_young",
        (F32, 3),
    ),
    (
        "never 0",
        L1,
        l1,
        method("residual", lambda f, z, p: f(z, p) + 0.1),
        "residual_is_that_of_fenchel_and_young",
        (F32, 3),
    ),
    (
        "minimiser",
        Squares,
        squares,
        method("tilted_minimiser", lambda f, u: f(1.01 * u)),
        "tilted_minimiser_minimises",
        (3,),
    ),
    ("gauge", L1, l1, method("gauge", lambda f, u: 0.98 * f(u)), "gauge_is_the_smallest_that_makes_feasible", (3,)),
    ("gauge", L1, l1, method("gauge", lambda f, u: 1.02 * f(u)), "gauge_is_the_smallest_that_makes_feasible", (3,)),
    (
        "too much",
        L1,
        l1,
        method("best_multiple", lambda f, p, m: 3 * f(p, m)),
        "best_multiple_is_feasible_and_not_worse_than_1",
        (3,),
    ),
    (
        "worse",
        Squares,
        squares,
        method("best_multiple", lambda f, p, m: -f(p, m)),
        "best_multiple_is_feasible_and_not_worse_than_1",
        (3,),
    ),
    ("no room", L1, l1, method("rounding", lambda f, *a: 0 * f(*a)), "float32_is_within_rounding_of_float64", (3,)),
    (
        "no room",
        Squares,
        squares,
        method("rounding", lambda f, *a: 0 * f(*a)),
        "points_that_are_off_are_within_rounding",
        (3, 1e-3),
    ),
    (
        "no room",
        Boxed,
        boxed,
        method("rounding", lambda f, *a: 0 * f(*a)),
        "points_that_are_off_are_within_rounding",
        (3, 1e-3),
    ),
    ("all room", L1, l1, method("rounding", lambda f, *a: f(*a) + 1), "float32_is_within_rounding_of_float64", (3,)),
    ("of the batch", L1, l1, method("value", of_the_batch), "an_instance_of_a_batch_is_the_instance_alone", (F64,)),
    ("of the batch", L1, l1, method("prox", of_the_batch), "a_nan_stays_in_its_instance", (F64,)),
    (
        "one step",
        Squares,
        squares,
        method("prox", lambda f, z, s: f(z, torch.as_tensor(s).mean())),
        "steps_per_instance_are_those_of_the_instances",
        (),
    ),
    ("select", L1, l1, lambda kind: {"batched": ()}, "an_instance_of_a_batch_is_the_instance_alone", (F64,)),
    ("in place", L1, l1, method("prox", in_place), "shapes_and_dtypes_are_kept_and_arguments_untouched", (F32, 3)),
    (
        "shape",
        L1,
        l1,
        method("value", lambda f, z: f(z)[:, None]),
        "shapes_and_dtypes_are_kept_and_arguments_untouched",
        (F32, 3),
    ),
    ("default dtype", L1, l1, method("value", default_dtype_of), "float64_as_default_changes_nothing", ()),
    ("detached", Squares, squares, method("prox", detached), "derivatives_in_the_points", ()),
    ("detached", Squares, squares, method("prox", detached), "derivatives_in_its_own_tensors", ()),
    ("open", Box, box, method("prox", lambda f, z, s: 1.001 * f(z, s)), "the_domain_and_its_edge", (F32,)),
    ("outside", Box, box, method("violation", lambda f, z: f(z) + 1), "the_domain_and_its_edge", (F64,)),
]


@pytest.mark.parametrize(
    ("kind", "make", "change", "test", "arguments"), [row[1:] for row in WRONG], ids=[f"{r[0]}-{r[4]}" for r in WRONG]
)
def test_a_wrong_term_is_noticed(kind, make, change, test, arguments):
    class Suite(TermConformance):
        def make_term(self, batch, dtype, generator):
            return make(self.kind, batch, dtype, generator)

        def points(self, term, batch, dtype, generator):
            return normal(batch, 2, 3, dtype=dtype, generator=generator)

    suite, run = Suite(), f"test_{test}"
    suite.kind = kind
    getattr(suite, run)(*arguments)
    suite.kind = type(f"Wrong{kind.__name__}", (kind,), change(kind))
    with pytest.raises((AssertionError, RuntimeError)):
        getattr(suite, run)(*arguments)


def test_digits_lost_to_an_offset_are_noticed():
    class Lossy(Squares):
        def residual(self, z, p):
            return Term.residual(self, z, p)

    class Suite(TermConformance):
        def make_offset(self, batch, dtype, generator):
            y = OFFSET + units(batch, 4, dtype=dtype, generator=generator)
            return Lossy(y, 0.01), y + units(batch, 4, dtype=dtype, generator=generator)

    with pytest.raises(AssertionError):
        Suite().test_data_far_from_0_cost_the_residual_no_digits(3)
