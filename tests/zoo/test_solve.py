"""`lmd.solve`: picks, goes through, stops where it is proven, starts from earlier answers."""

import copy
import math
import pickle

import pytest
import torch
from torch.testing import assert_close

import lmd
from lmd.errors import CapabilityError, InputError
from lmd.operators import Identity, gaussian_kernel
from lmd.operators.matrix import Matrix
from lmd.problems import (
    SVM,
    Composite,
    ControlFamily,
    Lasso,
    LeastSquares,
    PenalisedProblem,
    Problem,
    QuadraticProgram,
    SecondOrderModel,
    TVDeblurring,
    TVDenoising,
    TVInpainting,
)
from lmd.problems.simplex import KLDivergence
from lmd.solvers import FGP, PDHG, GradientDescent, Status
from lmd.terms import L1, Absolute, Box, NegativeEntropy, Simplex, Squares, Zero
from lmd.tv import schedules


def noisy(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    edges = torch.linspace(0, 1, shape[-1]).round().expand(shape)
    return (edges + 0.1 * torch.randn(shape, generator=generator)).to(dtype)


def problems(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    y, mask = noisy(2, 3, 20, 24, dtype=dtype), torch.rand(20, 24, generator=generator) < 0.7
    A = torch.randn(12, 30, generator=generator).to(dtype)
    b = (A @ torch.randn(30, 2, generator=generator).to(dtype)).T.contiguous()
    yield TVDenoising(y, 0.3)
    yield TVDenoising(y, torch.tensor([0.05, 0.5], dtype=dtype), isotropic=True)
    yield TVInpainting(y, mask, 0.3)
    yield TVInpainting(y, mask, 0.3, isotropic=True)
    yield TVDeblurring(y.clamp(0, 1), gaussian_kernel(1.0), 0.05)
    yield Lasso(A, b, 1.0)


@pytest.mark.parametrize("tolerance", [1e-1, 1e-3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_answer_is_proven(tolerance, dtype):
    for problem in problems(dtype):
        result = lmd.solve(problem, tolerance)
        assert result.status == (Status.TOLERANCE_REACHED,) * 2, type(problem).__name__
        assert bool((result.certificate.bound <= tolerance * result.certificate.lower_bound * (1 + 1e-6)).all())
        assert result.x.dtype == dtype and len(result.history) == 2
        assert_close(result.values, problem.value(result.x))


def test_a_warm_start_takes_the_dual_point_along():
    for problem in problems():
        first = lmd.solve(problem, 1e-4, solver=PDHG(settle=8))
        again = lmd.solve(problem, 1e-4, solver=PDHG(settle=8), warm=first)
        assert int(again.iterations.max()) <= 10 < int(first.iterations.max())
    y = noisy(1, 1, 32, 32)
    first = lmd.solve(TVDenoising(y, 0.3), 1e-4)
    other = TVDenoising(y + 0.01 * noisy(1, 1, 32, 32, seed=1), 0.3)
    warm, cold = lmd.solve(other, 1e-4, warm=first), lmd.solve(other, 1e-4)
    assert int(warm.iterations) < int(cold.iterations) and bool(warm.certificate.bound <= 1.001e-4 * warm.values)


def test_a_solver_of_ones_own_choice():
    problem = next(iter(problems()))
    assert isinstance(lmd.solve(problem, 1e-2, solver=FGP()).solver, FGP)
    with pytest.raises(CapabilityError, match=r"^solver: got GradientDescent, which keeps no dual point"):
        lmd.solve(problem, 1e-2, solver=GradientDescent())


def test_what_cannot_be_proven_ends_and_says_so():
    problem = TVDenoising(noisy(1, 1, 8, 8), 0.3)
    result = lmd.solve(problem, 1e-14)
    assert result.status == (Status.STALLED,)
    proven = result.certificate
    said = f"proven: within {float(proven.bound / proven.lower_bound):.2g} of the minimum"
    assert said in result.summary()
    assert lmd.solve(problem, 1e-6, iterations=7).status == (Status.FINISHED,)


def test_problems_without_a_dual_are_proven_by_strong_convexity():
    problem = LeastSquares(torch.ones(3, 1).double(), torch.arange(6.0).double().reshape(2, 3))
    result = lmd.solve(problem, 1e-6, x0=torch.zeros(2, 1).double())
    assert bool((result.certificate.bound <= 1e-6 * result.values).all())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"tolerance": 0}, r"^tolerance: got 0"),
        ({"iterations": 0}, r"^iterations: got 0"),
        ({"problem": lambda x: x}, r"^problem: got function, expected an lmd.problems.Problem"),
        (
            {"problem": LeastSquares(torch.eye(2), torch.ones(1, 2))},
            r"which has no start, expected one that has, or x0",
        ),
    ],
)
def test_bad_arguments(arguments, said):
    given = {"problem": next(iter(problems())), **arguments}
    with pytest.raises(InputError, match=said):
        lmd.solve(**given)


def test_strong_convexity_that_proves_the_tolerance_says_so() -> None:
    features = torch.randn(40, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    problem = lmd.problems.LinearClassifier(features, (features[:, 0] > 0).long(), 2, ridge=0.1)
    result = lmd.solve(problem, tolerance=1e-6, x0=features.new_zeros(1, 10))
    assert result.status == (Status.TOLERANCE_REACHED,)
    assert bool((result.certificate.bound <= 1e-6 * result.values).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_first_call_may_be_in_inference_mode(dtype):
    for cached in (schedules._tensors, schedules.denoising, schedules.table):
        cached.cache_clear()
    for problem in problems(dtype):
        with torch.inference_mode():
            first = lmd.solve(problem, 1e-3)
            assert first.status == (Status.TOLERANCE_REACHED,) * 2 and first.certificate is not None
            lmd.run(first.solver, problem, problem.start(), 3)
        again = lmd.solve(problem, 1e-3)
        assert_close(again.x, first.x)
    with torch.inference_mode():
        made = list(problems(dtype))  # of tensors from inference mode
        assert all(lmd.solve(problem, 1e-3).ok for problem in made)
    assert all(lmd.solve(problem, 1e-3).ok for problem in made)


def test_results_are_copied_and_pickled():
    for problem in problems():
        result = lmd.solve(problem, 1e-3)
        for again in (copy.deepcopy(result), pickle.loads(pickle.dumps(result))):
            assert torch.equal(again.x, result.x)
            assert torch.equal(again.certificate.bound, result.certificate.bound)


class Own(Problem):
    """A function of which nothing but its value is known, over a domain or not."""

    def __init__(self, function, domain=None, strong_convexity=None):
        self.function, self.domain, self._constant = function, domain, strong_convexity

    def value(self, x):
        return self.function(x)

    @property
    def strong_convexity(self):
        return None if self._constant is None else torch.tensor(self._constant, dtype=torch.float64)


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def programs():
    """One of each structure that has a default of its own, by name, and starts where they have none."""
    A, b, y, even = (
        normal(12, 5),
        normal(3, 12, seed=1),
        normal(3, 5, seed=2),
        torch.full((3, 5), 0.2, dtype=torch.float64),
    )
    P, fit, zeros = A.mT @ A, (Squares(b, 0.5), Matrix(A)), torch.zeros_like(y)
    cone = QuadraticProgram(P, y, A=A[:3], u=0.0)
    yield "a box", QuadraticProgram(P, 9 * y, -0.5, 0.5), None
    yield "a cone", cone, None
    yield "equations", QuadraticProgram(P, y, -1.0, 1.0, A[:2], 0.1, 0.1), None
    yield "two domains", Composite(Squares(y), (Simplex(), Identity()), (Box(0.0, 0.3), Identity()), start=even), None
    yield "no f", Composite(Zero(), (Simplex(), Identity()), (Squares(y), Identity()), start=even), None
    yield "no negative entries", Composite(Box(0.0, math.inf), fit, start=zeros), None
    yield "elastic net", Composite(L1(2.0), fit, (Squares(zeros, 0.5), Identity()), start=zeros), None
    small = 1e-9
    scaled = (Absolute(small * b), Matrix(A)), (Squares(zeros, 0.5), Identity())
    yield "small numbers", Composite(L1(0.1), *scaled, start=zeros), None
    yield "a penalty", PenalisedProblem(LeastSquares(A, b), L1(0.5)), zeros
    yield "a penalty on a domain", PenalisedProblem(KLDivergence(even), NegativeEntropy(2.0)), even
    yield "values on a simplex", Own(lambda x: (x * torch.arange(5)).exp().sum(dim=1), Simplex()), even
    yield "values on a box", Own(lambda x: 3 + (x - y).square().sum(dim=1), Box(0.0, 1.0)), even
    yield "values that are strongly convex", Own(lambda x: 1 + (x - y).square().sum(dim=1), None, 2.0), zeros


@pytest.mark.parametrize(("problem", "x0"), [pytest.param(*case[1:], id=case[0]) for case in programs()])
def test_every_structure_has_a_default_that_ends_proven(problem, x0):
    result = lmd.solve(problem, 1e-4, x0=x0, iterations=5000)
    assert result.status == (Status.TOLERANCE_REACHED,) * 3
    assert bool((result.certificate.bound <= 1.0001e-4 * result.values.abs()).all())
    assert_close(result.values, problem.value(result.x))


def test_the_default_proves_the_control_problems_of_the_package():
    problem, _ = ControlFamily().sample(100, torch.Generator().manual_seed(0))
    result = lmd.solve(problem, tolerance=1e-3, iterations=50)
    assert result.status == (Status.TOLERANCE_REACHED,) * 100 and bool(torch.isfinite(result.values).all())


def test_float64_goes_on_from_the_points_of_a_problem_without_a_start():
    labels = (normal(2, 30) > 0).float() * 2 - 1
    result = lmd.solve(SVM(normal(2, 30, 6).float(), labels), 1e-12, x0=torch.zeros(2, 7))
    assert result.status == (Status.STALLED,) * 2 and bool((result.certificate.bound < 1e-5).all())


@pytest.mark.parametrize(
    "problem", [LeastSquares(normal(2, 4), normal(1, 2)), Own(lambda x: (x - 1).square().sum(dim=1))]
)
def test_what_nothing_is_known_of_is_solved_and_not_proven(problem):
    result = lmd.solve(problem, 1e-3, x0=torch.zeros(1, 4, dtype=torch.float64))
    assert result.status == (Status.NOT_PROVEN,) and float(result.values) < 1e-12
    assert bool(result.certificate.bound.isinf().all()) and "strong_convexity" in result.summary()


def test_what_violates_its_constraints_says_so():
    A = torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    ends = torch.tensor([1.0, -1.0], dtype=torch.float64)
    problem = QuadraticProgram(torch.eye(2).double(), torch.ones(1, 2).double(), A=A, l=ends, u=ends)
    for solver in (None, PDHG()):
        result = lmd.solve(problem, 1e-4, solver=solver, iterations=300)
        assert result.status == (Status.NOT_FEASIBLE,) and bool(torch.isfinite(result.values).all())
        assert float(result.violation) > 0.5 and bool(result.certificate.bound.isinf().all())
        assert "violates the constraints" in result.summary() and "more iterations" in result.summary()


def test_constraints_are_met_to_rounding_and_no_further():
    A = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    problem = QuadraticProgram(torch.eye(2).double(), torch.zeros(1, 2).double(), A=A, l=0.0, u=0.0)
    near, off = (torch.tensor([[1.0, 1 + move]], dtype=torch.float64) for move in (1e-9, 1e-5))
    assert bool(torch.isfinite(problem.value(near))) and bool(problem.value(off).isinf())
    slope = torch.tensor([[-2.0, 0.0]], dtype=torch.float64)  # of which the minimum is -1, at (1, 1)
    problem = QuadraticProgram(torch.eye(2).double(), slope, A=A, l=0.0, u=0.0)
    value, gap = problem.certified_gap(near - torch.tensor([[1e-8, 0.0]]).double(), torch.ones(1, 1).double())
    assert float(value + 1) > 1e-9 and float(gap) >= float(value + 1)  # what the move to the constraint is worth


class TestWhatRoundingHoldsUp:
    """Instances that cannot be proven to their tolerance end as STALLED, with a bound that holds, and soon."""

    def test_the_room_of_a_proof(self):
        """Weights of 1e-12 times the contrast: the minimum is as small as what the proof loses."""
        y = 255e6 * noisy(2, 3, 12, 9, dtype=torch.float64)
        mask = torch.rand(12, 9, generator=torch.Generator().manual_seed(0)) < 0.5
        result = lmd.solve(TVInpainting(y, mask, 2.8e-4), tolerance=1e-4)
        assert {status.name for status in result.status} <= {"STALLED", "TOLERANCE_REACHED"}

    def test_points_that_stopped_to_move(self):
        """The minimum of a constant image is 0, and no relative gap to it is ever proven."""
        problem = TVDeblurring(torch.full((1, 1, 9, 8), 0.5, dtype=torch.float64), gaussian_kernel(1.0), 6e-4)
        result = lmd.solve(problem, tolerance=1e-4)
        assert result.status[0] in (Status.STALLED, Status.TOLERANCE_REACHED) and int(result.iterations) < 5000

    def test_what_gets_stuck_in_float32_is_solved_in_float64(self):
        """A contrast of 1e-4 of the offset: in float32 steps are lost in rounding long before the minimum."""
        y = 7.33e6 + 660 * torch.rand(4, 3, 2, 2, 2, generator=torch.Generator().manual_seed(0))
        problem = lmd.problems.TVModel(lmd.terms.Absolute(y), 2070.0)
        result = lmd.solve(problem, tolerance=1e-4)
        assert result.x.dtype == torch.float32
        assert {status.name for status in result.status} <= {"STALLED", "TOLERANCE_REACHED"}
        best = lmd.solve(problem.double(), tolerance=1e-6)
        assert result.certificate is not None
        assert bool((result.certificate.bound < 1e-3 * best.values).all())
        assert bool((problem.double().value(result.x.double()) - best.values <= result.certificate.bound).all())

    def test_iterations_that_ran_out(self):
        """Contrasts of one unit in the last place: no rounded x is nearer, however many iterations there are."""
        text = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0)) < 0.2
        problem = TVDenoising(1.4 + torch.finfo(torch.float32).eps * text, 5585.0)
        result = lmd.solve(problem, tolerance=1e-4, iterations=2000)
        assert int(result.iterations) <= 2000 and result.status[0] is Status.STALLED

    def test_roundings_of_many_iterations(self):
        """On an offset of 1e7 times the contrast, steps are lost in rounding, of which a few roundings are no bound."""
        y = 2.8e6 + 0.27 * torch.rand(1, 1, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        problem = lmd.problems.SecondOrderModel(Absolute(y), 2.8e-5, isotropic=True, coupled=True)
        result = lmd.solve(problem, tolerance=2e-9, iterations=10_000)
        assert result.status[0] is Status.STALLED and int(result.iterations) < 10_000

    def test_problems_without_a_start_are_solved_in_float64_from_x0(self):
        rows = 100 * torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
        problem = lmd.problems.SVM(rows, torch.where(rows[:, 0] + 0.3 * rows[:, 1] > 0, 1, -1), C=100.0)
        result = lmd.solve(problem, tolerance=1e-6, x0=torch.zeros(1, 4))
        assert result.status[0] in (Status.STALLED, Status.TOLERANCE_REACHED)


@pytest.mark.parametrize("term", [Squares, Absolute])
def test_data_that_are_the_same_where_they_are_kept_have_a_proven_minimum_of_0(term):
    """A lost impulse: x nears the level of the others for ever, and means of it are off by rounding."""
    y = torch.full((1, 1, 6, 5), 45.26156210561313, dtype=torch.float64)
    y[0, 0, 3, 2] = 49.8
    forward = lmd.operators.Mask((y < 49).double()[:1, :1])
    problem = lmd.problems.TVModel(term(y), 1.8e-6, isotropic=True, box=(45.2, 49.8), forward=forward)
    result = lmd.solve(problem, tolerance=1e-4)
    assert result.status[0] is Status.TOLERANCE_REACHED and float(result.values) == 0
    assert result.certificate is not None and float(result.certificate.bound) == 0


def test_a_compiled_solve_that_ends_too_soon_goes_on():
    """A weight of 1e-6 times the contrast: steps that fit are only found after the iterations that C waits for."""
    y = torch.zeros(1, 1, 4, 4, dtype=torch.float64)
    y[0, 0, 1, 3] = 0.06
    mask = torch.rand(4, 4, generator=torch.Generator().manual_seed(2)) < 0.7
    mask[0, 0] = True
    assert lmd.solve(TVInpainting(y, mask, 1.67e-7), tolerance=1e-6).status[0] is Status.TOLERANCE_REACHED


@pytest.mark.parametrize(("argument", "given"), [("solver", "FGP"), ("solver", FGP), ("warm", 3)])
def test_what_is_no_solver_and_no_result_is_refused(argument, given):
    problem = TVDenoising(torch.rand(1, 1, 4, 4), 0.1)
    with pytest.raises(InputError, match=f"{argument}: got .*, expected an? "):
        lmd.solve(problem, **{argument: given})


def test_autocast_changes_nothing():
    generator = torch.Generator().manual_seed(0)
    A, b = torch.randn(12, 30, generator=generator), torch.randn(2, 12, generator=generator)
    problem = Lasso(A, b, 1.0)
    expected = lmd.solve(problem, 1e-3), lmd.run(PDHG(), problem, problem.start(), 10)
    with torch.autocast("cpu", torch.bfloat16):
        found = lmd.solve(problem, 1e-3, iterations=2000), lmd.run(PDHG(), problem, problem.start(), 10)
    assert all(torch.equal(one.x, two.x) for one, two in zip(found, expected, strict=True))


def test_a_default_device_changes_nothing():
    kernel = gaussian_kernel(1.0)
    with torch.device("meta"):
        assert torch.equal(gaussian_kernel(1.0), kernel)
        family = lmd.problems.ControlFamily(states=2, inputs=1, horizon=3)
        problem, _ = family.sample(2, torch.Generator("cpu").manual_seed(0))
        assert problem.start().device.type == "cpu"
        operator = TVDenoising(torch.rand(1, 1, 4, 4, device="cpu"), 0.1).operator
        assert operator.wrapped_spectrum.device.type == "cpu"


@pytest.mark.parametrize("hidden", ["vmap", "grad", "meta"])
def test_tensors_that_cannot_be_read_are_refused_in_one_line(hidden):
    def solved(y):
        return lmd.solve(TVDenoising(y[None, None], 0.1)).x.sum()

    hide, given = {
        "vmap": (torch.func.vmap, torch.rand(2, 4, 4)),
        "grad": (torch.func.grad, torch.rand(4, 4)),
        "meta": (lambda call: call, torch.empty(4, 4, device="meta")),
    }[hidden]
    for call in (solved, lambda y: lmd.denoise(y, weight=0.1).sum(), lambda y: lmd.inpaint(y, y > 0, weight=0.1).sum()):
        with pytest.raises(InputError, match=r"\A[^\n]+\Z"):
            hide(call)(given)


def test_learned_steps_that_lead_astray_are_taken_back():
    y = torch.zeros(1, 1, 1, 6, dtype=torch.float64)
    y[..., 3] = 1e8
    problem = SecondOrderModel(Absolute(y), 6e7, isotropic=True, spacing=3.0)
    result = lmd.solve(problem, 1e-4, iterations=3000)
    assert result.solver.horizon and result.status[0] is Status.TOLERANCE_REACHED
