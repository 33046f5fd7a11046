import pytest
import torch

import lmd
from lmd.guarantees import DescentSafeguard, Diagnosis, Safeguard, diagnose, guard, harder_families
from lmd.mirrors import DenseICNN, Euclidean, Mirror, Quadratic
from lmd.problems import LeastSquaresFamily, SimplexFamily, TVDenoising, TVDenoisingFamily
from lmd.solvers import LearnedMirrorDescent, MirrorDescent


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
    assert of(found, "guarded: share of the trained iterations that fell back").value == 1
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
        self.network = DenseICNN(2, width=8, layers=1, constraint="none").double()
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
            problem._hessian_eigenvalues = lambda: torch.tensor([50.0, 60.0]).double()
            return problem, x0

    found = diagnose(MirrorDescent(Euclidean(), 0.01), Wrong(), batch=8, iterations=20)
    assert "certificate: largest excess of the true gap" in {finding.name for finding in found.broken}


class TestGuard:
    def test_is_the_one_that_suits_the_problem(self):
        solver = MirrorDescent(Euclidean(), 0.1)
        squares, _ = LeastSquaresFamily().sample(2, torch.Generator().manual_seed(0))
        simplex, _ = SimplexFamily().sample(2, torch.Generator().manual_seed(0))
        assert type(guard(solver, squares)) is DescentSafeguard
        assert type(guard(solver, TVDenoising(torch.rand(1, 1, 4, 4)))) is Safeguard
        assert guard(solver, simplex) is None

    def test_without_one_the_rest_is_still_diagnosed(self):
        found = diagnose(
            MirrorDescent(lmd.mirrors.Entropic(), 0.3), SimplexFamily("least-squares"), batch=4, iterations=30
        )
        assert found.broken == () and all(set(curves) == {"alone"} for curves in found.curves.values())


def test_images_get_noisier():
    family = TVDenoisingFamily(torch.rand(3, 1, 12, 12, dtype=torch.float64), noise=0.05, crop=8, dtype=torch.float64)
    harder = harder_families(family)
    assert [f.noise for f in harder.values()] == [(0.1, 0.1), (0.2, 0.2)] and family.noise == (0.05, 0.05)
    found = diagnose(MirrorDescent(Euclidean(), 0.05), family, batch=2, iterations=30)
    assert isinstance(found, Diagnosis) and found.broken == ()
    assert of(found, "guarded: certificate: share with a bound", "4 times the noise").value == 1


def test_a_solver_without_a_mirror():
    found = diagnose(lmd.solvers.GradientDescent(0.03), LeastSquaresFamily(), harder={}, batch=4, iterations=30)
    assert found.broken == () and set(found.curves) == {"its family"}
