import pytest
import torch
from torch.testing import assert_close

from lmd.errors import CapabilityError, InputError
from lmd.problems import LeastSquares, LeastSquaresFamily, Problem, SimplexFamily
from lmd.problems.base import as_problem, autograd_subgradient, check_capabilities, check_values
from lmd.problems.simplex import KLDivergence, SquaredDistance

FAMILIES = [LeastSquaresFamily(), SimplexFamily("kl"), SimplexFamily("least-squares", dimension=5)]


class Quartic(Problem):
    def value(self, x):
        return (x**4).sum(dim=1)


class Scaled(Problem):
    """scale_i ||x||^2, with a label that is no floating-point tensor."""

    batched = ("scale", "label")

    def __init__(self, scale):
        self.scale, self.label = scale, torch.arange(len(scale))

    def value(self, x):
        return self.scale * x.square().sum(dim=1)


@pytest.mark.parametrize("batch", [1, 2, 7])
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: f"{family.name}")
class TestHandWrittenSubgradients:
    def test_agree_with_autograd(self, family, batch):
        problem, x = family.sample(batch, torch.Generator().manual_seed(1))
        values, subgradient = autograd_subgradient(problem.value, x)
        assert_close(problem.value(x), values)
        assert_close(problem.subgradient(x), subgradient)
        assert_close(problem.value_and_subgradient(x), (values, subgradient))

    def test_an_instance_of_a_batch_is_the_instance_alone(self, family, batch):
        problem, x = family.sample(batch, torch.Generator().manual_seed(2))
        for i in range(batch):
            alone = problem.select(i)
            assert alone.batch_size == 1
            assert_close(alone.value(x[i : i + 1]), problem.value(x)[i : i + 1])
            assert_close(alone.subgradient(x[i : i + 1]), problem.subgradient(x)[i : i + 1])
            assert_close(alone.minimiser(), problem.minimiser()[i : i + 1])

    def test_minimum_is_below_everything_else(self, family, batch):
        problem, x = family.sample(batch, torch.Generator().manual_seed(3))
        assert_close(problem.minimum(), problem.value(problem.minimiser()))
        assert bool((problem.minimum() <= problem.value(x)).all())

    def test_convexity(self, family, batch):
        """f(z) >= f(x) + <g(x), z - x> + strong convexity/2 ||z - x||^2, and at most smoothness/2 of it."""
        problem, x = family.sample(batch, torch.Generator().manual_seed(4))
        z = family.sample(batch, torch.Generator().manual_seed(5))[1]
        excess = problem.value(z) - problem.value(x) - (problem.subgradient(x) * (z - x)).sum(dim=1)
        distance = (z - x).square().sum(dim=1)
        low, high = problem.strong_convexity, problem.smoothness
        assert bool((excess >= (0 if low is None else low) / 2 * distance - 1e-12).all())
        assert high is None or bool((excess <= high / 2 * distance + 1e-12).all())


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: f"{family.name}")
def test_families_are_deterministic_under_a_seed(family):
    (one, x), (other, z) = (family.sample(4, torch.Generator().manual_seed(7)) for _ in range(2))
    assert torch.equal(x, z) and torch.equal(one.value(x), other.value(z))
    assert not torch.equal(x, family.sample(4, torch.Generator().manual_seed(8))[1])


class TestDefaultSubgradient:
    def test_a_problem_of_your_own_is_one_method(self):
        x = torch.tensor([[1.0, -2.0], [0.0, 3.0]])
        assert_close(Quartic().subgradient(x), 4 * x**3)
        values, subgradient = Quartic().value_and_subgradient(x)
        assert_close(values, torch.tensor([17.0, 81.0]))
        assert_close(subgradient, 4 * x**3)

    def test_works_where_gradients_are_off_and_records_nothing(self):
        x = torch.ones(2, 3)
        with torch.no_grad():
            subgradient = Quartic().subgradient(x)
        assert_close(subgradient, torch.full((2, 3), 4.0))
        assert not subgradient.requires_grad and not x.requires_grad
        assert not Quartic().subgradient(x).requires_grad

    def test_is_part_of_a_graph_that_is_recorded(self):
        x = torch.ones(1, 2, requires_grad=True)
        (second,) = torch.autograd.grad(Quartic().subgradient(x).sum(), x)
        assert_close(second, torch.full((1, 2), 12.0))

    def test_of_a_function_that_does_not_use_some_entries(self):
        problem = as_problem(lambda x: x[:, 0].abs())
        assert_close(problem.subgradient(torch.tensor([[-2.0, 5.0]])), torch.tensor([[-1.0, 0.0]]))

    @pytest.mark.parametrize(
        "function",
        [
            lambda x: torch.zeros(len(x)),
            lambda x: x.detach().sum(dim=1),
            lambda x: torch.ones(len(x), requires_grad=True) * x.detach().sum(dim=1),
        ],
        ids=["constant", "detached", "learned"],
    )
    def test_where_autograd_cannot_follow(self, function):
        with pytest.raises(InputError, match=r"^value\(x\): got a result that autograd cannot follow back to x"):
            as_problem(function).subgradient(torch.ones(2, 3))


class TestAsProblem:
    def test_a_problem_stays_itself_and_a_function_becomes_one(self):
        problem = Quartic()
        assert as_problem(problem) is problem
        assert_close(as_problem(lambda x: x.sum(dim=1)).value(torch.ones(2, 3)), torch.full((2,), 3.0))

    def test_anything_else_is_refused(self):
        with pytest.raises(
            InputError, match=r"^problem: got int, expected an lmd.problems.Problem or a function of x$"
        ):
            as_problem(3)


class TestBatches:
    def test_batch_size(self):
        assert Quartic().batch_size is None
        assert Scaled(torch.ones(5)).batch_size == 5

    def test_select(self):
        problem = Scaled(torch.tensor([1.0, 2.0, 3.0]))
        assert_close(problem.select(slice(1, 3)).scale, torch.tensor([2.0, 3.0]))
        assert_close(problem.select(torch.tensor([True, False, True])).label, torch.tensor([0, 2]))
        assert_close(problem.select(-1).scale, torch.tensor([3.0]))
        assert problem.batch_size == 3
        with pytest.raises(IndexError):
            problem.select(3)


class TestStart:
    GOOD = (
        (Quartic(), torch.zeros(3, 4, 5)),
        (Scaled(torch.ones(2).double()), torch.zeros(2, 3).double()),
        (LeastSquares(torch.ones(4, 3), torch.ones(2, 4)), torch.zeros(2, 3)),
        (KLDivergence(torch.full((2, 4), 0.25)), torch.zeros(2, 4)),
    )
    BAD = (
        (Scaled(torch.ones(2)), torch.zeros(3, 3), r"shape \(3, 3\), expected 2 instances, as the problem has"),
        (
            Scaled(torch.ones(2)),
            torch.zeros(2, 3).double(),
            "torch.float64, expected torch.float32, .* the problem's scale",
        ),
        (
            LeastSquares(torch.ones(4, 3), torch.ones(2, 4)),
            torch.zeros(2, 4),
            r"shape \(2, 4\), expected shape \(2, 3\)",
        ),
        (
            SquaredDistance(torch.full((2, 4), 0.25)),
            torch.zeros(2, 1),
            r"shape \(2, 1\), expected shape \(2, 4\)",
        ),
    )

    @pytest.mark.parametrize(("problem", "x0"), GOOD)
    def test_a_start_that_fits(self, problem, x0):
        assert problem.check_start(x0) is x0

    @pytest.mark.parametrize(("problem", "x0", "words"), BAD)
    def test_a_start_that_does_not_fit(self, problem, x0, words):
        with pytest.raises(InputError, match=r"^x0: got " + words):
            problem.check_start(x0)


class TestValues:
    def test_one_number_per_instance(self):
        values = torch.zeros(2)
        assert check_values(Quartic(), values, torch.ones(2, 3)) is values

    @pytest.mark.parametrize("values", [torch.zeros(()), torch.zeros(2, 1), torch.zeros(3)])
    def test_another_shape(self, values):
        with pytest.raises(InputError, match=r"^Quartic\.value\(x\): got shape .*expected shape \(2,\): one value per"):
            check_values(Quartic(), values, torch.ones(2, 3))

    def test_no_tensor(self):
        with pytest.raises(InputError, match=r"^Quartic\.value\(x\): got float, expected a torch tensor$"):
            check_values(Quartic(), 1.0, torch.ones(2, 3))


class TestCapabilities:
    def test_what_is_there(self):
        problem = LeastSquaresFamily().sample(2, torch.Generator().manual_seed(0))[0]
        check_capabilities(problem, ("smoothness", "strong_convexity", "minimiser", "minimum", "subgradient"), "Mine")
        check_capabilities(KLDivergence(torch.full((1, 2), 0.5)), ("domain",), "Mine")

    @pytest.mark.parametrize("capability", ["domain", "minimiser", "minimum", "smoothness", "prox"])
    def test_what_is_missing_is_named_with_who_needs_it(self, capability):
        accepted = f"a problem with a {capability}, which Mine needs"
        words = f"^problem: got Quartic, which has no {capability}, expected {accepted}$"
        with pytest.raises(CapabilityError, match=words):
            check_capabilities(Quartic(), (capability,), "Mine")
