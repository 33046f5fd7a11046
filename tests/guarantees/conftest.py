"""Strongly convex problems whose minimisers are known, and mirrors that are exact, learned, or broken on purpose."""

import functools

import pytest
import torch

import lmd
from lmd.guarantees import reference
from lmd.mirrors import (
    DiagonalQuadratic,
    Euclidean,
    Mirror,
    Quadratic,
    Rotation,
    Separable,
)
from lmd.mirrors.potentials import Matrices, PotentialNetwork
from lmd.problems import LeastSquares, LeastSquaresFamily, Problem
from lmd.solvers import LearnedMirrorDescent


def random(generator, *shape):
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def uniform(generator, low, high):
    return low + (high - low) * float(torch.rand((), dtype=torch.float64, generator=generator))


class Tilted(Problem):
    """f(x) = h(x) - <grad h(x*), x>, h(x) = mu/2 ||x||^2 + sum log cosh(a_i x_i): smooth, not quadratic."""

    batched = ("solution",)

    def __init__(self, mu, scales, solution):
        self.mu, self.scales, self.solution = mu, scales, solution

    def h(self, x):
        t = (self.scales * x).abs()
        return self.mu / 2 * x.square().sum(dim=1) + (t + torch.log1p(torch.exp(-2 * t))).sum(dim=1)

    def gradient_h(self, x):
        return self.mu * x + self.scales * torch.tanh(self.scales * x)

    def value(self, x):
        return self.h(x) - (self.gradient_h(self.solution) * x).sum(dim=1)

    def subgradient(self, x):
        return self.gradient_h(x) - self.gradient_h(self.solution)

    def minimiser(self):
        return self.solution

    @property
    def smoothness(self):
        return self.mu + self.scales.square().max()

    @property
    def strong_convexity(self):
        return self.mu


class Kinked(Problem):
    """f(x) = mu/2 ||x - a||^2 + sum w_i |x_i - b_i|: not smooth; the minimiser is b + shrink(a - b, w / mu)."""

    batched = ("a", "b")

    def __init__(self, mu, weights, a, b):
        self.mu, self.weights, self.a, self.b = mu, weights, a, b

    def value(self, x):
        return self.mu / 2 * (x - self.a).square().sum(dim=1) + (x - self.b).abs() @ self.weights

    def subgradient(self, x):
        return self.mu * (x - self.a) + self.weights * (x - self.b).sign()

    def minimiser(self):
        far = self.a - self.b
        return self.b + far.sign() * (far.abs() - self.weights / self.mu).clamp(min=0)

    @property
    def strong_convexity(self):
        return self.mu


def quadratic(generator, batch, dimension):
    curvatures = torch.logspace(0, uniform(generator, 0, 2), dimension, dtype=torch.float64)
    basis = torch.linalg.qr(random(generator, dimension, dimension)).Q
    W = (basis * (uniform(generator, 0.1, 2) * curvatures / 2).sqrt()) @ basis.T
    return LeastSquares(W, random(generator, batch, dimension) @ W.T)


def tilted(generator, batch, dimension):
    mu = torch.tensor(uniform(generator, 0.05, 2), dtype=torch.float64)
    return Tilted(mu, random(generator, dimension).abs(), random(generator, batch, dimension))


def kinked(generator, batch, dimension):
    mu = torch.tensor(uniform(generator, 0.1, 2), dtype=torch.float64)
    weights = random(generator, dimension).abs()
    return Kinked(mu, weights, random(generator, batch, dimension), random(generator, batch, dimension))


PROBLEMS = {"quadratic": quadratic, "tilted": tilted, "kinked": kinked}


class Sloppy(DiagonalQuadratic):
    """An inverse that is off by an offset and a factor."""

    is_exact = False
    offset, factor = 0.0, 1.0

    def to_primal(self, y, tolerance=None):
        return self.factor * super().to_primal(y) + self.offset


class TwoNetworks(Mirror):
    """A convex network and a second one that is to invert it, as in the paper; untrained, it hardly does."""

    is_exact = False

    def __init__(self, dimension, seed, noise=0.0):
        super().__init__()
        kind = {"width": 8, "layers": 1, "activation": "smooth" if seed % 2 else "leaky"}
        self.network = PotentialNetwork(Matrices(dimension), seed=seed, **kind).double()
        self.inverse = PotentialNetwork(Matrices(dimension), seed=seed + 1, convex=False, **kind).double()
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.add_(noise * random(generator, *parameter.shape))
        self.network.constrain_()

    def potential(self, x):
        return self.network.value(x)

    def to_dual(self, x):
        return self.network.gradient(x)

    def to_primal(self, y, tolerance=None):
        return self.inverse.gradient(y)

    @property
    def strong_convexity(self):
        return self.network.strong_convexity


def seed_of(generator):
    return int(torch.randint(1 << 30, (), generator=generator))


def sloppy(generator, dimension):
    mirror = Sloppy(dimension, diagonal=random(generator, dimension).abs() + 0.3).requires_grad_(False)
    mirror.offset, mirror.factor = uniform(generator, -0.1, 0.1), uniform(generator, 0.9, 1.1)
    return mirror


def random_quadratic(generator, dimension):
    square = random(generator, dimension, dimension)
    return Quadratic.from_matrix(square @ square.T / dimension + 0.3 * torch.eye(dimension)).requires_grad_(False)


def random_splines(generator, dimension):
    mirror = Separable(Rotation(dimension), knots=2).double().requires_grad_(False)
    for numbers in (mirror.transform.vectors, mirror.logs):
        numbers.add_(0.5 * random(generator, *numbers.shape))
    return mirror


@functools.cache
def train_pair(dimension):
    """A pair that a short training has taught to solve least squares, and to be inverse, somewhat."""
    solver = LearnedMirrorDescent(TwoNetworks(dimension, 0), 4).double()
    family = LeastSquaresFamily(torch.diag(torch.linspace(0.5, 1.5, dimension, dtype=torch.float64)))
    return lmd.train(solver, family, updates=40, batch=32, learning_rate=1e-2, progress=False).solver.mirror


MIRRORS = {
    "Euclidean": lambda generator, d: Euclidean(),
    "diagonal": lambda generator, d: DiagonalQuadratic(d, diagonal=random(generator, d).abs() + 0.3),
    "quadratic": random_quadratic,
    "splines": random_splines,
    "sloppy": sloppy,
    "trained": lambda generator, d: train_pair(d),
    "untrained": lambda generator, d: TwoNetworks(d, seed_of(generator)),
    "broken": lambda generator, d: TwoNetworks(d, seed_of(generator), noise=uniform(generator, 0, 1)),
}


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory):
    """Certified minimisers of images are remembered for these tests alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LMD_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def limit_evaluations(monkeypatch):
    """Make the reference methods give up after so many gap evaluations."""

    def limit(count):
        monkeypatch.setattr(reference, "MAX_ITERATIONS", count * reference.INTERVAL)

    return limit


@pytest.fixture(params=PROBLEMS)
def every_problem(request):
    return PROBLEMS[request.param]


@pytest.fixture(params=MIRRORS)
def every_mirror(request):
    return MIRRORS[request.param]


@pytest.fixture(scope="session")
def problems():
    return PROBLEMS


@pytest.fixture(scope="session")
def mirrors():
    return MIRRORS


@pytest.fixture
def pair():
    return TwoNetworks


@pytest.fixture
def sloppy_mirror():
    def make(offset):
        mirror = Sloppy(2, diagonal=torch.ones(2, dtype=torch.float64)).requires_grad_(False)
        mirror.offset = offset
        return mirror

    return make
