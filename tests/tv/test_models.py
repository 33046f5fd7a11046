"""The compiled loop of models: the numbers of the eager one, and gaps that are never below those of float64."""

import pytest
import torch
from torch.testing import assert_close

import lmd
from lmd import kernels
from lmd.operators import Blur, LinearOperator, Mask, gaussian_kernel
from lmd.problems import SecondOrderModel, TVDenoising, TVModel
from lmd.solvers import LearnedFGP, Solver
from lmd.terms import Absolute, Huber, KullbackLeibler, Squares
from lmd.terms.squares import MaskedSquares
from lmd.terms.wrappers import Boxed
from lmd.tv import PrimalDual, match, schedules
from lmd.tv.plans import MIN_TOLERANCE, SquaresModel, model_of
from lmd.tv.primal_dual import joint_iterations, misfit_iterations, second_order_iterations

pytestmark = pytest.mark.skipif(kernels.library() is None, reason="no compiled kernels here")


def random(*shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


IMAGE, VOLUME = (2, 3, 9, 7), (1, 2, 5, 6, 4)
MODELS = {
    "coupled": (IMAGE, {"coupled": True}, 0.3),
    "huber": (IMAGE, {"huber": 0.1}, 0.3),
    "coupled huber": (IMAGE, {"huber": 0.1, "coupled": True}, 0.3),
    "box": (IMAGE, {"box": (0.3, 0.7)}, 0.3),
    "spacings": (IMAGE, {"spacing": (1.0, 2.0)}, 0.3),
    "map": (IMAGE, {}, 0.1 + random(2, 1, 9, 7, seed=1)),
    "map for each channel": (IMAGE, {}, 0.1 + random(2, 3, 9, 7, seed=1)),
    "coupled map": (IMAGE, {"coupled": True}, 0.1 + random(2, 1, 9, 7, seed=1)),
    "volume": (VOLUME, {}, 0.3),
    "volume with all": (VOLUME, {"coupled": True, "huber": 0.05, "spacing": (2.0, 1.0, 0.5), "box": (0.1, 0.8)}, 0.3),
    "one plane": ((1, 1, 1, 6, 4), {}, 0.3),
    "one column": ((1, 1, 8, 1), {"coupled": True}, 0.3),
    "signal": ((2, 2, 11), {"coupled": True}, 0.3),
    "map of a signal": ((2, 1, 11), {}, 0.1 + random(2, 1, 11, seed=1)),
}


def model(name, isotropic, dtype=torch.float32):
    shape, options, weight = MODELS[name]
    weight = weight.to(dtype) if isinstance(weight, torch.Tensor) else weight
    return TVModel(Squares(random(*shape).to(dtype)), weight, isotropic=isotropic, **options)


def only(iterations, coarse, monkeypatch):
    """The schedule of so many iterations, which is taken whatever the tolerance is."""
    pairs = ((each.iterations, each.coarse) for each in schedules.denoising())
    chosen = schedules.denoising()[list(pairs).index((iterations, coarse))]
    monkeypatch.setattr(schedules, "choose", lambda *given, **named: chosen)
    return chosen


def learned(schedule):
    """The solver in PyTorch whose schedule this is."""
    solver = LearnedFGP(schedule.iterations, schedule.coarse)
    solver.numbers.data = schedule.values.float()
    return solver


@pytest.mark.parametrize("isotropic", [False, True], ids=["anisotropic", "isotropic"])
@pytest.mark.parametrize("name", MODELS)
def test_it_is_the_eager_iteration_and_its_gap_holds(name, isotropic, monkeypatch):
    problem, schedule = model(name, isotropic), only(13, False, monkeypatch)
    solver = learned(schedule)
    with torch.no_grad():
        for count in (13, 40):
            eager = solver.advance(problem, solver.init(problem, problem.start()), count)
            found = model_of(problem).solve(MIN_TOLERANCE, count, None)
            done = [outcome.iterations for outcome in found.outcomes]
            if done == [count] * len(done):  # and none was proven before
                assert_close(found.x, eager.x, atol=2e-6, rtol=0)
                assert_close(found.dual, eager.dual, atol=5e-6, rtol=0)
            assert count == 40 or max(done) == 13
            value, gap = problem.certified_gap(found.x, found.dual)
            assert [outcome.value for outcome in found.outcomes] == pytest.approx(value.tolist(), rel=1e-12)
            assert bool((found.gaps >= gap * (1 - 1e-9)).all()) and bool((found.gaps <= gap + 3e-6 * value).all())


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_change_nothing(threads):
    problem = TVModel(Squares(random(1, 3, 90, 80)), 0.3, coupled=True)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        found = lmd.solve(problem, 1e-2)
        torch.set_num_threads(1)
        assert torch.equal(found.x, lmd.solve(problem, 1e-2).x)
    finally:
        torch.set_num_threads(before)


def test_a_solve_goes_through_it_and_a_warm_one_begins_where_it_was():
    problem = model("volume", True)
    found = lmd.solve(problem, 1e-3)
    assert found.status[0].name == "TOLERANCE_REACHED"
    assert bool((found.certificate.bound <= 1e-3 * found.values).all())
    assert lmd.solve(problem, 1e-3, warm=found).iterations.max() <= 8 < found.iterations.min()


def test_what_it_does_not_serve():
    y = random(*IMAGE)
    assert type(match(model("coupled", True, torch.float64), 1e-3)) is not SquaresModel
    assert type(match(model("huber", True), 1e-7)) is not SquaresModel
    assert isinstance(match(model("huber", True), 1e-3), SquaresModel)
    assert type(match(TVModel(Squares(y, 1.0, y), 0.3), 1e-3)) is not SquaresModel  # weights of entries
    delta = TVModel(Squares(y), 0.3, huber=0.1)
    delta.regularisers = (Huber(0.3, torch.full((2,), 0.1)),)
    assert match(delta, 1e-3) is None


MISFITS = {
    "squares of some": lambda y: Squares(y, 1.0, (y > 0.3).float()),
    "counts": lambda y: KullbackLeibler(torch.poisson(9 * y, generator=torch.Generator().manual_seed(3))),
    "counts above a background": lambda y: KullbackLeibler((9 * y).floor(), 0.5),
    "absolute": lambda y: Absolute(y, (y > 0.3).float()),
}


@pytest.mark.parametrize("isotropic", [False, True], ids=["anisotropic", "isotropic"])
@pytest.mark.parametrize("misfit", MISFITS)
@pytest.mark.parametrize("name", [name for name in MODELS if name != "one plane"])
def test_relaxed_iterations_are_the_eager_ones(name, misfit, isotropic):
    shape, options, weight = MODELS[name]
    problem = TVModel(MISFITS[misfit](random(*shape)), weight, isotropic=isotropic, **options)
    solver = PrimalDual(torch.zeros(12, 3) + torch.tensor([0.0, 0.0, 1.9]))
    with torch.no_grad():
        solver.numbers += 0.1 * (random(12, 3, seed=2) - 0.6)
        assert misfit_iterations(problem) is not None
        state = solver.init(problem, problem.start())
        found, eager = solver.advance(problem, state, 30), Solver.advance(solver, problem, state, 30)
    for field in ("x", "dual", "relaxed", "relaxed_dual", "tau", "anchor"):
        assert_close(getattr(found, field), getattr(eager, field), atol=5e-5, rtol=1e-4)
    assert found.iteration == eager.iteration == 30


def test_relaxed_iterations_do_not_depend_on_threads_and_leave_what_they_start_from():
    problem, before = TVModel(KullbackLeibler(9 * random(1, 3, 90, 80)), 0.3, coupled=True), torch.get_num_threads()
    solver = PrimalDual()
    state = solver.init(problem, problem.start())
    kept = state.relaxed.clone()
    try:
        answers = []
        for threads in (1, 3):
            torch.set_num_threads(threads)
            answers.append(solver.advance(problem, state, 20))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(answers[0].x, answers[1].x) and torch.equal(answers[0].dual, answers[1].dual)
    assert torch.equal(state.relaxed, kept)


def test_boxes_that_change_from_pixel_to_pixel_are_left_to_pytorch():
    y = random(1, 1, 5, 6)
    problem = TVModel(Absolute(y), 0.3)
    problem.f.box.low = y - 0.1
    assert misfit_iterations(problem) is None and misfit_iterations(TVModel(Absolute(y), 0.3)) is not None
    assert misfit_iterations(TVModel(Absolute(y.double()), 0.3)) is None


@pytest.mark.parametrize("options", [{}, {"isotropic": True, "spacing": (2.0, 1.0, 1.0)}], ids=["plain", "spacings"])
def test_volumes_begin_on_coarser_grids(options, monkeypatch):
    problem, schedule = TVDenoising(random(2, 1, 17, 20, 18), 0.3, **options), only(19, True, monkeypatch)
    solver = learned(schedule)
    with torch.no_grad():
        eager = solver.advance(problem, solver.init(problem, problem.start()), 19)
        found = model_of(problem).solve(MIN_TOLERANCE, 19, None)
    assert_close(found.x, eager.x, atol=2e-6, rtol=0)
    each = [lmd.solve(problem.select(n), 1e-3).x for n in range(2)]
    assert torch.equal(lmd.solve(problem, 1e-3).x, torch.cat(each))


BESIDE = {
    "blurred": lambda x, blur: TVModel(Squares(blur(x)), 0.05, forward=blur),
    "coupled huber": lambda x, blur: TVModel(
        Squares(blur(x)), 0.05, forward=blur, isotropic=True, coupled=True, huber=0.05
    ),
    "map": lambda x, blur: TVModel(Squares(blur(x)), 0.02 + 0.1 * x[:, :1], forward=blur, spacing=(1.0, 2.0)),
    "counts": lambda x, blur: TVModel(KullbackLeibler(30 * blur(x)), 0.5, forward=blur, box=(0.0, 60.0)),
    "distances": lambda x, blur: TVModel(Absolute(blur(x)), 0.5, forward=blur, isotropic=True),
}


@pytest.mark.parametrize("name", BESIDE)
def test_a_misfit_behind_an_operator_has_the_eager_iterations(name, monkeypatch):
    x = random(2, 3, 12, 9)
    problem, solver = (
        BESIDE[name](x, Blur(gaussian_kernel(0.8), 12, 9, "replicate")),
        PrimalDual(torch.zeros(5, 3) + torch.tensor([0.0, 0.0, 1.9])),
    )
    with torch.no_grad():
        solver.numbers.add_(0.1 * random(5, 3, seed=7))
        begun = solver.init(problem, problem.start())
        assert joint_iterations(problem, begun.relaxed) is not None
        state, sums = solver.sum_steps(problem, begun, 60)
        monkeypatch.setattr(kernels, "library", lambda: None)
        eager, eager_sums = solver.sum_steps(problem, begun, 60)
    scale = float(eager.x.abs().max())
    for one, other in ((state.x, eager.x), (state.relaxed, eager.relaxed), (sums.x / 60, eager_sums.x / 60)):
        assert_close(one / scale, other / scale, atol=5e-6, rtol=0)
    for one, other in ((state.dual, eager.dual), (sums.dual / 60, eager_sums.dual / 60)):
        assert_close(one, other, atol=2e-5, rtol=0)
    assert sums.iterations == eager_sums.iterations == 60 and state.iteration == 60


def test_counts_that_are_lost_have_the_eager_iterations(monkeypatch):
    mask = (random(2, 1, 12, 9, seed=5) < 0.6).float()
    counts = mask * (20 * random(2, 3, 12, 9)).round()
    problem, solver = TVModel(KullbackLeibler(counts), 0.5, forward=Mask(mask), box=(0.0, 40.0)), PrimalDual()
    with torch.no_grad():
        begun = solver.init(problem, problem.start())
        assert misfit_iterations(problem) is not None
        state = solver.advance(problem, begun, 50)
        monkeypatch.setattr(kernels, "library", lambda: None)
        eager = solver.advance(problem, begun, 50)
    assert_close(state.x, eager.x, atol=2e-4, rtol=0)
    assert_close(state.dual, eager.dual, atol=2e-5, rtol=0)


SECOND = {
    "squares": lambda y: {"misfit": Squares(y), "weight": 0.1},
    "weights per image": lambda y: {"misfit": Squares(y, scale=0.5), "weight": torch.tensor([0.1, 0.3])},
    "box and spacing": lambda y: {"misfit": Squares(y), "weight": 0.1, "box": (0.2, 0.8), "spacing": (1.0, 2.0)},
    "distances": lambda y: {"misfit": Absolute(y), "weight": 0.4},
    "counts": lambda y: {"misfit": KullbackLeibler((20 * y).round()), "weight": 0.3},
    "lost counts": lambda y: {"misfit": KullbackLeibler((20 * y).round()).with_mask((y > 0.3).float()), "weight": 0.3},
}


@pytest.mark.parametrize("size", [(9, 7), (1, 5), (2, 2), (5, 1), (3, 33)], ids=str)
@pytest.mark.parametrize(
    "form", [{}, {"isotropic": True}, {"coupled": True}, {"isotropic": True, "coupled": True}], ids=str
)
@pytest.mark.parametrize("name", SECOND)
def test_second_order_has_the_eager_iterations(name, form, size, monkeypatch):
    problem, solver = (
        SecondOrderModel(**SECOND[name](random(2, 3, *size)), **form),
        PrimalDual(torch.zeros(5, 3) + torch.tensor([0.0, 0.0, 1.9])),
    )
    with torch.no_grad():
        solver.numbers.add_(0.1 * random(5, 3, seed=7))
        begun = solver.init(problem, problem.start())
        assert second_order_iterations(problem) is not None
        state, sums = solver.sum_steps(problem, begun, 40)
        monkeypatch.setattr(kernels, "library", lambda: None)
        eager, eager_sums = solver.sum_steps(problem, begun, 40)
    scale = float(eager.x.abs().max())
    for one, other in ((state.x, eager.x), (state.relaxed, eager.relaxed), (sums.x / 40, eager_sums.x / 40)):
        assert_close(one / scale, other / scale, atol=1e-5, rtol=0)
    for one, other in ((state.dual, eager.dual), (sums.dual / 40, eager_sums.dual / 40)):
        assert_close(one, other, atol=1e-5, rtol=0)


def test_second_order_does_not_depend_on_the_number_of_threads():
    problem, solver = SecondOrderModel(Squares(random(1, 3, 96, 90)), 0.1), PrimalDual()
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            found.append(solver.advance(problem, solver.init(problem, problem.start()), 20).x)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


class _Answers64(LinearOperator):
    """The identity of somebody who computes in float64."""

    norm, roundings = 1.0, 0.0

    def _apply(self, x):
        return x.double()

    def _adjoint(self, z):
        return z.double()


def test_operators_that_answer_in_another_dtype_are_read_as_what_they_say():
    y = random(1, 2, 6, 7)
    found = lmd.solve(TVModel(Squares(y), 0.1, forward=_Answers64()), 1e-5)
    assert_close(found.x, lmd.solve(TVModel(Squares(y), 0.1, box=(0.0, 1.0)), 1e-6).x, atol=5e-3, rtol=0)


@pytest.mark.parametrize("kind", [MaskedSquares, Boxed])
def test_second_order_of_misfits_that_are_not_compiled_is_solved_all_the_same(kind):
    y, mask = random(1, 2, 6, 7), (random(1, 1, 6, 7, seed=3) < 0.7).float()
    terms = {MaskedSquares: MaskedSquares(y, mask), Boxed: Boxed(MaskedSquares(y, mask), 0.0, 1.0)}
    problem = SecondOrderModel(terms[kind], 0.1)
    assert second_order_iterations(problem) is None and lmd.solve(problem, 1e-2).status[0].name == "TOLERANCE_REACHED"


def test_squares_in_a_box_keep_it_behind_a_mask():
    y, mask = 2 * random(1, 1, 6, 7), (random(1, 1, 6, 7, seed=3) < 0.7).float()
    assert MaskedSquares(y, mask).with_mask(mask) is None and Squares(y).with_mask(mask) is not None
