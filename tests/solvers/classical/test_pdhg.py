import pytest
import torch
from torch.testing import assert_close

import lmd
from lmd.errors import CapabilityError, InputError
from lmd.problems import LeastSquares, TVDenoising, TVInpainting
from lmd.solvers import PDHG
from lmd.solvers.classical import pdhg


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LMD_CACHE", str(tmp_path))


def problem(kind="denoising", dtype=torch.float64, **arguments):
    generator = torch.Generator().manual_seed(0)
    edges = torch.linspace(0, 1, 10, dtype=dtype).round().expand(2, 1, 9, 10)
    noisy = edges + 0.1 * torch.randn(2, 1, 9, 10, dtype=dtype, generator=generator)
    weight = torch.tensor([0.2, 0.5], dtype=dtype)
    if kind == "denoising":
        return TVDenoising(noisy, weight, **arguments)
    return TVInpainting(noisy, torch.rand(2, 1, 9, 10, generator=generator) < 0.8, weight, **arguments)


def states(solver, problem, x0, count):
    found = [solver.init(problem, x0)]
    for _ in range(count):
        found.append(solver.step(problem, found[-1]))
    return found


def textbook(problem, count, tau, gamma):
    """Algorithms 1 (gamma = 0) and 2 of Chambolle and Pock for 1/2 ||x - y||^2 + bound TV."""
    K, y = problem.operator, problem.noisy
    bound = problem.bound.reshape(-1, 1, 1, 1, 1)
    x = ahead = y
    p, sigma = torch.zeros_like(K(y)), 1 / (tau * K.norm**2)
    for _ in range(count):
        p = torch.minimum(torch.maximum(p + sigma * K(ahead), -bound), bound)
        new = (x - tau * K.adjoint(p) + tau * y) / (1 + tau)
        theta = 1 / (1 + 2 * gamma * tau) ** 0.5
        tau, sigma = theta * tau, sigma / theta
        ahead, x = new + theta * (new - x), new
    return x


@pytest.mark.parametrize(("accelerated", "gamma"), [(True, 1.0), (False, 0.0)])
def test_it_is_the_textbooks(accelerated, gamma):
    tv = problem(halved=True)
    for count in (1, 2, 30):
        found = states(PDHG(0.3, accelerated=accelerated), tv, tv.noisy, count)[-1]
        assert_close(found.x, textbook(tv, count, 0.3, gamma), rtol=1e-10, atol=1e-10)


def test_the_form_of_the_problem_does_not_matter():
    for kind in ("denoising", "inpainting"):
        whole, half = problem(kind), problem(kind, halved=True)
        assert_close(states(PDHG(), whole, whole.noisy, 20)[-1].x, states(PDHG(), half, half.noisy, 20)[-1].x)


@pytest.mark.parametrize("isotropic", [False, True])
@pytest.mark.parametrize("kind", ["denoising", "inpainting"])
def test_it_converges_from_any_start_and_keeps_its_dual_point_feasible(kind, isotropic):
    tv = problem(kind, isotropic=isotropic)
    x0 = 5 * torch.randn(2, 1, 9, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    final = states(PDHG(), tv, x0, 2000)[-1]
    assert bool((tv.relative_gap(final.x, final.dual) < 1e-3).all())
    assert_close(tv.value(final.x), lmd.guarantees.minimum(tv), rtol=1e-3, atol=0)
    assert_close(tv.g.project(final.dual), final.dual, rtol=1e-14, atol=0)


def test_acceleration_changes_the_steps_where_f_is_strongly_convex_and_nothing_elsewhere():
    taus = [state.tau for state in states(PDHG(0.4), problem(), problem().noisy, 3)]
    assert taus[1] == pytest.approx(0.4 / (1 + 4 * 0.4) ** 0.5) and taus[3] < taus[2] < taus[1]
    inpainting = problem("inpainting")
    same = [lmd.run(PDHG(accelerated=a), inpainting, iterations=20).x for a in (True, False)]
    assert_close(same[0], same[1], rtol=0, atol=0)


def test_a_batch_gives_what_each_instance_gives_alone():
    for kind in ("denoising", "inpainting"):
        tv = problem(kind, torch.float32)
        together = lmd.run(PDHG(), tv, iterations=100)
        for i in range(2):
            assert_close(lmd.run(PDHG(), tv.select(i), iterations=100).x[0], together.x[i], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["denoising", "inpainting"])
def test_a_step_leaves_its_state_alone_and_is_the_same_when_recorded(kind):
    tv, solver = problem(kind), PDHG()
    with torch.no_grad():
        state = states(solver, tv, tv.noisy, 3)[-1]
        before = {name: value.clone() for name, value in vars(state).items() if isinstance(value, torch.Tensor)}
        after = solver.step(tv, state)
    for name, value in before.items():
        assert_close(getattr(state, name), value, rtol=0, atol=0)
    recorded = solver.step(tv, state)
    assert_close(recorded.x, after.x, rtol=0, atol=0)
    assert_close(recorded.dual, after.dual, rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["denoising", "inpainting"])
def test_training_can_differentiate_through_steps(kind):
    tv, solver = problem(kind), PDHG()
    start = tv.noisy + 0.1 * torch.randn(
        tv.noisy.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    assert torch.autograd.gradcheck(lambda x: states(solver, tv, x, 2)[-1].x, start.requires_grad_())


def test_evaluations_are_counted(monkeypatch):
    tv, solver, calls = problem(), PDHG(), []
    for owner, name in ((tv.operator, "_apply"), (tv.operator, "_adjoint"), (tv.f, "prox")):
        real = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *a, real=real, name=name, **k: calls.append(name) or real(*a, **k))
    state = solver.init(tv, tv.noisy)
    assert (calls.count("_apply"), len(calls)) == (solver.init_cost["operator"], 1)
    calls.clear()
    solver.step(tv, state)
    counted = {
        "operator": calls.count("_apply"),
        "adjoint": calls.count("_adjoint"),
        "prox": calls.count("prox"),
    }
    assert counted == solver.step_cost


def test_the_first_step_is_given_or_that_of_the_problem():
    tv = problem()
    for solver, tau in ((PDHG(), 1 / (2 * tv.operator.norm)), (PDHG(tau=0.4), 0.4)):
        assert solver.init(tv, tv.noisy).tau == pytest.approx(tau)
        assert solver.steps(tv) == pytest.approx((tau, 1 / (tau * tv.operator.norm**2)))


def test_it_can_be_saved_and_loaded(tmp_path):
    lmd.solvers.save(PDHG(0.1, accelerated=False), tmp_path)
    assert lmd.solvers.load(tmp_path).config() == {"tau": 0.1, "accelerated": False, "settle": 1.0}


def test_bad_arguments():
    with pytest.raises(InputError, match=r"^tau: got -1"):
        PDHG(-1)
    with pytest.raises(CapabilityError, match=r"LeastSquares, which has no operator.*PDHG needs"):
        lmd.run(PDHG(), LeastSquares(torch.eye(2), torch.ones(1, 2)), torch.ones(1, 2))


class TestSettling:
    def test_the_primal_step_falls_and_then_stays(self):
        tv = problem("inpainting")
        taus = [state.tau for state in states(PDHG(0.2, settle=4.0), tv, tv.noisy, 100)]
        assert taus[:21] == pytest.approx([0.2] * 21)
        assert taus[40] == pytest.approx(0.1) and taus[80:] == pytest.approx([0.05] * 21)

    def test_late_iterations_are_better_and_early_ones_the_same(self):
        """On a wavy image with little noise, of which the smoothest parts take longest."""
        generator, r = torch.Generator().manual_seed(0), torch.linspace(0, 1, 24, dtype=torch.float64)
        waves = torch.sin(6 * r)[:, None] * torch.cos(4 * r) + (r > 0.5)[:, None]
        noisy = waves + 0.02 * torch.randn(2, 1, 24, 24, dtype=torch.float64, generator=generator)
        tv = TVInpainting(noisy, torch.rand(2, 1, 24, 24, generator=generator) < 0.7, 0.3)
        least = lmd.guarantees.minimum(tv)
        plain, settled = (lmd.run(PDHG(settle=s), tv, iterations=300).history.values - least for s in (1.0, 8.0))
        assert torch.equal(plain[:21], settled[:21])
        assert bool((settled[100] < 0.7 * plain[100]).all()) and bool((settled[300] < 0.7 * plain[300]).all())

    def test_acceleration_ends_where_it_settles(self):
        tv = problem()
        found = {settle: states(PDHG(settle=settle), tv, tv.noisy, 60) for settle in (1.0, 4.0)}
        first = float(found[1.0][0].tau)
        ends = next(k for k, state in enumerate(found[1.0]) if state.tau < first / 4)
        assert 2 < ends < 50
        assert torch.equal(found[1.0][ends - 1].x, found[4.0][ends - 1].x)
        assert not torch.equal(found[1.0][-1].x, found[4.0][-1].x)
        assert {float(state.tau) for state in found[4.0][ends:]} == {float(found[1.0][ends - 1].tau)}

    def test_each_instance_ends_its_acceleration_for_itself(self):
        taus = torch.tensor([1.0, 0.3], dtype=torch.float64)
        x = torch.zeros(2, 1)
        state = pdhg.PDHGState(x, dual=x, ahead=x, tau=taus, least=0.25)
        assert pdhg._unless_settled(torch.tensor([0.5, 0.5]).double(), state).tolist() == [0.5, 1.0]

    def test_only_downwards(self):
        with pytest.raises(InputError, match=r"^settle: got 0.5, expected a number of 1 or more"):
            PDHG(settle=0.5)


@pytest.mark.parametrize("argument", ["tau", "settle"])
def test_steps_that_no_float32_can_take_are_refused(argument):
    with pytest.raises(InputError, match=rf"^{argument}: got 1e\+300, expected a number from 1e-12 to 1e\+12"):
        PDHG(**{argument: 1e300})
