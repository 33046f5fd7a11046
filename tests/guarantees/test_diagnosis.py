import pytest
import torch
from torch.testing import assert_close

import lmd
from lmd.guarantees import Safeguard, guard
from lmd.guarantees.diagnosis import Diagnosis, compare, diagnose
from lmd.mirrors import ConvPair, Euclidean, Mirror, Quadratic
from lmd.mirrors.potentials import Matrices, PotentialNetwork
from lmd.problems import SVM, LeastSquaresFamily, SimplexFamily, SVMFamily, TVDenoising, TVDenoisingFamily
from lmd.solvers import GradientDescent, LearnedMirrorDescent, MirrorDescent, run


def of(diagnosis, name, variant="its family"):
    (found,) = [f for f in diagnosis.findings if f.name == name and f.variant == variant]
    return found


def test_a_sound_solver_breaks_no_promise():
    solver = LearnedMirrorDescent(Quadratic(2), 5, initial_step=0.05).double()
    found = diagnose(solver, LeastSquaresFamily(), batch=8, iterations=60)
    assert found.broken == ()
    assert set(found.curves) == {"its family", "starts 3 times as far"}
    assert {len(curve) for curves in found.curves.values() for curve in curves.values()} == {61}
    start, end = (of(found, f"mean value at the {when}").value for when in ("start", "end"))
    assert end < start < of(found, "mean value at the start", "starts 3 times as far").value


def test_divergence_is_reported_and_the_guarded_run_is_sound():
    found = diagnose(MirrorDescent(Euclidean(), 1.0), LeastSquaresFamily(), batch=8, iterations=60)
    assert of(found, "share that failed on the way").value == 1
    assert of(found, "guarded: share of the first 20 iterations that fell back").value == 1
    assert of(found, "guarded: mean value at the end").value < 1e-3
    assert found.broken == ()


class Liar(Quadratic):
    """Claims ten times the strong convexity it has."""

    @property
    def strong_convexity(self):
        return 10 * super().strong_convexity


class Concave(Mirror):
    """A network that was trained without its constraint, and still claims to be convex."""

    is_exact = False

    def __init__(self):
        super().__init__()
        self.network = PotentialNetwork(Matrices(2), width=8, layers=1, convex=False).double()
        with torch.no_grad():
            self.network.out.fill_(-3.0)

    def potential(self, x):
        return self.network.value(x)

    def to_dual(self, x):
        return self.network.gradient(x)

    def to_primal(self, y, tolerance=None):
        return y

    @property
    def strong_convexity(self):
        return torch.tensor(0.5, dtype=torch.float64)


@pytest.mark.parametrize("mirror", [Liar(2).double(), Concave()], ids=["liar", "concave"])
def test_a_potential_that_is_less_convex_than_it_says_is_noticed(mirror):
    found = diagnose(MirrorDescent(mirror, 0.01), LeastSquaresFamily(), batch=8, iterations=20)
    assert "height of the potential above its chords" in {finding.name for finding in found.broken}


def test_a_wrong_constant_of_the_problem_is_noticed():
    class Wrong(LeastSquaresFamily):
        def sample(self, batch, generator):
            problem, x0 = super().sample(batch, generator)
            problem._hessian_eigenvalues = torch.tensor([50.0, 60.0]).double()
            return problem, x0

    found = diagnose(MirrorDescent(Euclidean(), 0.01), Wrong(), batch=8, iterations=20)
    assert "certificate: largest excess of the true gap" in {finding.name for finding in found.broken}


class TestGuard:
    def test_is_the_one_that_suits_the_problem(self):
        solver = MirrorDescent(Euclidean(), 0.1)
        squares, _ = LeastSquaresFamily().sample(2, torch.Generator().manual_seed(0))
        simplex, _ = SimplexFamily().sample(2, torch.Generator().manual_seed(0))
        denoising = TVDenoising(torch.rand(1, 1, 4, 4))
        svm = SVM(torch.eye(2), torch.tensor([1, -1]))
        for problem in (squares, denoising, svm):
            assert guard(solver, problem).delay == 0
        assert guard(solver, simplex) is None

    def test_runs_along_beside_a_network_on_images_and_waits_beside_what_is_cheap(self):
        squares, _ = LeastSquaresFamily().sample(2, torch.Generator().manual_seed(0))
        denoising = TVDenoising(torch.rand(1, 1, 4, 4))
        network = LearnedMirrorDescent(ConvPair(1, filters=2, layers=1), 6)
        assert guard(network, denoising).delay == 0
        assert guard(LearnedMirrorDescent(Quadratic(2), 6), squares).delay == 6
        assert guard(LearnedMirrorDescent(Euclidean(), 30), denoising).delay == 10

    def test_without_one_the_rest_is_still_diagnosed(self):
        found = diagnose(
            MirrorDescent(lmd.mirrors.Entropic(), 0.3), SimplexFamily("least-squares"), batch=4, iterations=30
        )
        assert found.broken == () and all(set(curves) == {"alone"} for curves in found.curves.values())


def test_images_get_noisier():
    family = TVDenoisingFamily(torch.rand(3, 1, 12, 12, dtype=torch.float64), noise=0.05, crop=8, dtype=torch.float64)
    harder = family.harder()
    assert [f.noise for f in harder.values()] == [(0.1, 0.1), (0.2, 0.2)] and family.noise == (0.05, 0.05)
    found = diagnose(MirrorDescent(Euclidean(), 0.05), family, batch=2, iterations=30)
    assert isinstance(found, Diagnosis) and found.broken == ()
    assert of(found, "guarded: certificate: share with a bound", "4 times the noise").value == 1


def svm_family(subsets=1):
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(2, (60,), generator=generator)
    features = torch.randn(60, 4, generator=generator) + labels[:, None]
    return SVMFamily(features, labels, (0, 1), 40, subsets=subsets)


def test_features_get_shifted():
    family = svm_family()
    harder = family.harder()
    assert len(harder) == 4 and all(f is not family for f in harder.values())
    moved = harder["shifted features"].features - family.features
    assert_close(moved.abs(), (0.5 * family.features.std(dim=0)).expand_as(moved))
    found = diagnose(LearnedMirrorDescent(Quadratic(4 + 1), 5), family, batch=2, iterations=40)
    assert found.broken == ()
    assert of(found, "guarded: largest excess over the fall-back alone at 20", "doubled features").holds
    assert of(found, "guarded: largest relative gap at the end", "shifted features").value < 1e-5
    assert of(found, "guarded: certificate: share with a bound", "features with 20% noise").value == 1


class TestCompare:
    def test_says_by_how_much_a_run_exceeds_the_fallback(self):
        problem, x0 = LeastSquaresFamily().sample(3, torch.Generator().manual_seed(0))
        least = problem.minimum()
        sound = compare(guard(GradientDescent(1.0), problem), problem, x0, iterations=30, proven=least)
        assert sound.excess.tolist() == [0, 0, 0] and bool((sound.gap < 1e-9).all())
        late = Safeguard(GradientDescent(1e-9), GradientDescent(0.02), delay=50)
        found = compare(late, problem, x0, iterations=30, proven=least)
        reached = run(GradientDescent(0.02), problem, x0, 20).values
        assert_close(found.excess, found.guarded.history.values[20] / reached - 1)
        assert bool((found.excess > 0.5).all()) and bool((found.gap > 0.1).all())

    def test_gaps_are_relative_to_the_minimum_or_where_that_is_0_to_the_value_at_0(self):
        problem, x0 = svm_family().sample(3, torch.Generator().manual_seed(0))
        slow, minimum = Safeguard(GradientDescent(1e-3), GradientDescent(1e-3)), lmd.guarantees.minimum(problem)
        found = compare(slow, problem, x0, iterations=25, proven=minimum)
        assert_close(found.gap, (found.guarded.values.double() - minimum) / minimum)
        squares, start = LeastSquaresFamily().sample(2, torch.Generator().manual_seed(0))
        found = compare(slow, squares, start, iterations=25, proven=squares.minimum())
        assert_close(found.gap, found.guarded.values / squares.value(torch.zeros_like(start)))

    def test_ends_at_a_target_but_not_too_early(self):
        problem, x0 = LeastSquaresFamily().sample(3, torch.Generator().manual_seed(0))
        target = torch.full((3,), 1e-3, dtype=torch.float64)
        found = compare(guard(GradientDescent(1.0), problem), problem, x0, iterations=500, target=target)
        assert found.guarded.iterations.tolist() == [20, 20, 20]


def test_a_solver_without_a_mirror():
    found = diagnose(lmd.solvers.GradientDescent(0.03), LeastSquaresFamily(), batch=4, iterations=30)
    assert found.broken == () and "its family" in found.curves
