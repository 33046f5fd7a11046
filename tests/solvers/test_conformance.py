"""Every solver of the package and of the zoo, bare and guarded, in the conformance suite; and the suite itself."""

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

import lmd
from lmd import kernels, solvers, terms, zoo
from lmd.guarantees import Safeguard
from lmd.mirrors import Cosine, Entropic, Euclidean, Quadratic, Rotation, Separable
from lmd.operators import Differences, gaussian_kernel
from lmd.problems import (
    SVM,
    Composite,
    Lasso,
    LeastSquares,
    LinearClassifier,
    PenalisedProblem,
    QuadraticProgram,
    TVDeblurring,
    TVDenoising,
    TVInpainting,
    TVTomography,
)
from lmd.problems.simplex import SquaredDistance
from lmd.reproduction import recipes
from lmd.solvers.classical.admm import CirculantADMM
from lmd.solvers.classical.interior_point import InteriorPoint
from lmd.solvers.classical.qp_interior_point import QPInteriorPoint
from lmd.solvers.initialisers import NetworkInitialiser
from lmd.solvers.learned.gradient import (
    LearnedBlockNewton,
    LearnedGradient,
    Metric,
)
from lmd.solvers.wrappers import Averaged, NoWorseThanStart, Sequential, WithInitialiser
from lmd.terms import L1, Huber, Shifted
from lmd.testing.solvers import SolverConformance

F32, F64 = torch.float32, torch.float64


def random(*shape, seed=0):
    return torch.rand(shape, dtype=F64, generator=torch.Generator().manual_seed(seed))


# Problems by name: the tensors they are made of, in float64, and how.
IMAGES, COLOURS = random(3, 1, 30, 34), random(2, 3, 26, 18)
SIGNS = torch.where(random(2, 12, seed=4) > 0.5, 1, -1)
PROBLEMS = {
    "denoising": ({"noisy": IMAGES, "weight": 0.1 + random(3)}, lambda noisy, weight: TVDenoising(noisy, weight)),
    "denoising in colour": ({"noisy": COLOURS}, lambda noisy: TVDenoising(noisy, 0.2, halved=True)),
    "isotropic denoising": ({"noisy": COLOURS}, lambda noisy: TVDenoising(noisy, isotropic=True)),
    "inpainting": (
        {"noisy": IMAGES, "mask": (random(3, 1, 30, 34, seed=1) > 0.3).double()},
        lambda noisy, mask: TVInpainting(noisy, mask),
    ),
    "inpainting in colour": (
        {"noisy": COLOURS, "mask": (random(26, 18, seed=1) > 0.3).double(), "weight": 0.1 + random(2)},
        lambda noisy, mask, weight: TVInpainting(noisy, mask, weight),
    ),
    "deblurring": (
        {"noisy": COLOURS, "kernel": gaussian_kernel(0.7, 3)},
        lambda noisy, kernel: TVDeblurring(noisy, kernel),
    ),
    "tomography": ({"noisy": random(2, 1, 5, 15)}, lambda noisy: TVTomography(noisy, (8, 9))),
    "lasso": ({"A": random(9, 6) - 0.5, "b": random(3, 9), "x0": random(3, 6)}, lambda A, b, x0: Lasso(A, b, 0.1)),
    "least squares": (
        {"W": random(4, 2), "b": random(3, 4, seed=1), "x0": random(3, 2, seed=2)},
        lambda W, b, x0: LeastSquares(W, b),
    ),
    "simplex": (
        {"y": random(3, 4).softmax(dim=1), "x0": random(3, 4, seed=1).softmax(dim=1)},
        lambda y, x0: SquaredDistance(y),
    ),
    "quadratic program": (
        {"root": random(4, 4), "q": random(3, 4) - 0.5, "low": -random(3, 4), "A": random(2, 4)},
        lambda root, q, low, A: QuadraticProgram(root @ root.mT + torch.eye(4).to(q), q, low, 0.3, A, u=0.5),
    ),
    "box": (
        {"root": random(3, 4, 4), "q": random(3, 4) - 0.5},
        lambda root, q: QuadraticProgram(root @ root.mT + torch.eye(4).to(q), q, -0.1, 0.3),
    ),
    "signals": (
        {"y": random(3, 8)},
        lambda y: Composite(Shifted(Huber(1.0, 0.1), y), (terms.L1(0.2), Differences((8,))), start=0 * y),
    ),
    "penalised": (
        {"W": random(4, 3), "b": random(3, 4, seed=1), "x0": random(3, 3, seed=2)},
        lambda W, b, x0: PenalisedProblem(LeastSquares(W, b), L1(0.1)),
    ),
    "svm": (
        {"features": random(2, 12, 50), "labels": SIGNS, "x0": 0.1 * random(4, 51)},
        lambda features, labels, x0: SVM(features, labels, starts=2),
    ),
    "classifier": (
        {"features": random(2, 12, 50), "labels": torch.arange(24).reshape(2, 12) % 10, "x0": 0.1 * random(4, 500)},
        lambda features, labels, x0: LinearClassifier(features, labels, starts=2),
    ),
}


def rough(solver):
    """A solver with kernels that have no symmetry to hide behind."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in solver.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=F32)
            parameter.copy_(parameter.float() + 0.02 * noise)
    return solver


def in_cosines():
    return Separable(Cosine(4), knots=1)


SOLVERS = {
    "FGP": (lambda: solvers.FGP(), "denoising"),
    "FGP with restarts": (lambda: solvers.FGP(restart=True), "isotropic denoising"),
    "PDHG": (lambda: solvers.PDHG(), "inpainting"),
    "PDHG accelerated": (lambda: solvers.PDHG(settle=2.0), "denoising in colour"),
    "PDHG on the lasso": (lambda: solvers.PDHG(), "lasso"),
    "LearnedFGP": (lambda: rough(solvers.LearnedFGP(3)), "denoising"),
    "LearnedFGP in colour": (lambda: rough(solvers.LearnedFGP(5)), "denoising in colour"),
    "LearnedFGP isotropic": (lambda: rough(solvers.LearnedFGP(3)), "isotropic denoising"),
    "LearnedDual": (lambda: rough(solvers.LearnedDual(3, 3)), "denoising"),
    "LearnedDual in colour": (lambda: rough(solvers.LearnedDual(5, 5)), "denoising in colour"),
    "LearnedDual isotropic": (lambda: rough(solvers.LearnedDual(3, 7)), "isotropic denoising"),
    "LearnedSaddle": (lambda: rough(solvers.LearnedSaddle(3, 3, 5)), "inpainting"),
    "LearnedSaddle in colour": (lambda: rough(solvers.LearnedSaddle(5, 5, 3)), "inpainting in colour"),
    "LearnedSaddle without a mask": (lambda: rough(solvers.LearnedSaddle(3, 3, 3, masked=False)), "deblurring"),
    "LearnedSaddle on sinograms": (lambda: rough(solvers.LearnedSaddle(3, 3, 3, masked=False)), "tomography"),
    "LearnedPDHG": (lambda: rough(solvers.LearnedPDHG(3)), "lasso"),
    "LearnedPDHG on images": (lambda: rough(solvers.LearnedPDHG(3)), "deblurring"),
    "RelaxedPDHG": (lambda: solvers.RelaxedPDHG(), "lasso"),
    "RelaxedPDHG learned": (lambda: rough(solvers.RelaxedPDHG(3)), "inpainting in colour"),
    "RelaxedPDHG on sinograms": (lambda: rough(solvers.RelaxedPDHG(2)), "tomography"),
    "Averaged": (lambda: Averaged(solvers.RelaxedPDHG()), "lasso"),
    "Averaged learned": (lambda: rough(Averaged(solvers.RelaxedPDHG(3))), "inpainting in colour"),
    "Averaged PDHG": (lambda: Averaged(solvers.PDHG()), "tomography"),
    "CirculantADMM": (lambda: CirculantADMM(), "deblurring"),
    "ProximalGradient": (lambda: solvers.ProximalGradient(), "penalised"),
    "ProximalGradient on a simplex": (lambda: solvers.ProximalGradient(), "simplex"),
    "QPInteriorPoint": (lambda: QPInteriorPoint(), "quadratic program"),
    "QPInteriorPoint with matrices for each": (lambda: QPInteriorPoint(), "box"),
    "ADMM": (lambda: solvers.ADMM(), "quadratic program"),
    "ADMM learned": (lambda: rough(solvers.ADMM([1, 2])), "signals"),
    "ADMM with blocks": (lambda: rough(solvers.ADMM([1, 2], blocks=[4, 2])), "quadratic program"),
    "ADMM with matrices for each": (lambda: rough(solvers.ADMM([1])), "box"),
    "LearnedGradient": (
        lambda: rough(LearnedGradient(Metric(2, dense=False), 3)),
        "least squares",
    ),
    "LearnedGradient on a simplex": (
        lambda: rough(LearnedGradient(Metric(4, dense=False), 2)),
        "simplex",
    ),
    "LearnedGradient with memory": (
        lambda: rough(LearnedGradient(Metric(2, dense=False), 2, memory=8)),
        "least squares",
    ),
    "WithInitialiser": (
        lambda: WithInitialiser(solvers.ADMM(), rough(NetworkInitialiser([8], 8, 3, hidden=5))),
        "signals",
    ),
    "Sequential": (
        lambda: Sequential(LearnedGradient(Metric(2), 2), solvers.LBFGS()),
        "least squares",
    ),
    "GradientDescent": (lambda: solvers.GradientDescent(0.05), "least squares"),
    "GradientDescent on images": (lambda: solvers.GradientDescent(0.01), "denoising"),
    "GradientDescent on the simplex": (lambda: solvers.GradientDescent(0.05), "simplex"),
    "Nesterov": (lambda: solvers.Nesterov(0.05), "least squares"),
    "Adam": (lambda: solvers.Adam(0.05), "least squares"),
    "LBFGS": (lambda: solvers.LBFGS(), "least squares"),
    "InteriorPoint": (lambda: InteriorPoint(), "svm"),
    "LearnedInteriorPoint": (lambda: rough(solvers.LearnedInteriorPoint(51, 3)), "svm"),
    "LearnedBlockNewton": (lambda: rough(LearnedBlockNewton(3)), "classifier"),
    "MirrorDescent": (lambda: solvers.MirrorDescent(Quadratic(2), 0.05), "least squares"),
    "MirrorDescent on a simplex": (lambda: solvers.MirrorDescent(Entropic(), 0.05), "simplex"),
    "LearnedMirrorDescent": (lambda: solvers.LearnedMirrorDescent(Quadratic(2), iterations=3), "least squares"),
    "LazyMirrorDescent": (lambda: solvers.LazyMirrorDescent(Quadratic(2), 0.05), "least squares"),
    "AcceleratedMirrorDescent": (lambda: solvers.AcceleratedMirrorDescent(Quadratic(2), 0.05), "least squares"),
    "AcceleratedStochasticMirrorDescent": (
        lambda: solvers.AcceleratedStochasticMirrorDescent(Quadratic(2), 0.05),
        "least squares",
    ),
    "CorrectedMirrorDescent": (
        lambda: solvers.CorrectedMirrorDescent(Quadratic(2), 0.05, iterations=3),
        "least squares",
    ),
    "ProximalMirrorDescent": (lambda: solvers.ProximalMirrorDescent(Euclidean(), 0.05), "penalised"),
    "BacktrackedMirrorDescent": (lambda: solvers.BacktrackedMirrorDescent(Quadratic(2)), "least squares"),
    "BacktrackedMirrorDescent accelerated": (
        lambda: solvers.BacktrackedMirrorDescent(in_cosines(), accelerated=True),
        "denoising in colour",
    ),
    "ExactMirrorDescent on images": (
        lambda: rough(solvers.ExactMirrorDescent(in_cosines(), 3, 9.0, 9.0, widths=2)),
        "inpainting",
    ),
    "ExactMirrorDescent on hinges": (
        lambda: solvers.ExactMirrorDescent(Separable(Rotation(51), 1), 2),
        "svm",
    ),
    "NoWorseThanStart": (lambda: NoWorseThanStart(rough(solvers.LearnedDual(3, 3))), "denoising"),
    "BestSoFar": (lambda: solvers.BestSoFar(solvers.GradientDescent(0.01)), "denoising"),
    "Stochastic": (lambda: solvers.Stochastic(solvers.GradientDescent(0.001), 5), "svm"),
}
ZOO = {
    "least-squares": "least squares",
    "svm": "svm",
    "linear-classifier": "classifier",
    "denoise": "denoising in colour",
    "denoise-isotropic": "isotropic denoising",
    "inpaint": "inpainting in colour",
    "deblur": "deblurring",
    "tomography": "tomography",
    "models": "inpainting in colour",
    "lasso": "lasso",
}
"""The problems of the zoo's solvers, by task."""


TASKS = {name: recipes.task_of(name).name for name in zoo.names()}
TRAINED = {name: (lambda name=name: zoo.load(name), ZOO[task]) for name, task in TASKS.items()}
CASES = {**SOLVERS, **TRAINED}


@contextmanager
def compiled(build):
    """One of the builds of the kernels, or none of them."""
    code = None if build is None else kernels.load(build)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "library", lambda: code)
        yield


class Conformance(SolverConformance):
    """A solver and a problem from the tables above, certified."""

    case = "FGP"
    guarded = False
    iterations = 3

    @property
    def tolerance(self):
        """The one-layer mirrors for SVMs were trained to condition numbers of 10^5 and more."""
        return {F32: 0.05, F64: 1e-9} if self.case.startswith("svm-one-layer") else SolverConformance.tolerance

    @property
    def table(self):
        return CASES[self.case]

    def make_solver(self, dtype):
        solver = self.table[0]()
        with torch.no_grad():
            for parameter in solver.parameters():
                parameter.copy_(parameter.float())  # the same numbers, whatever dtype they began in
        solver = solver.to(dtype)
        return Safeguard(solver) if self.guarded else solver

    def data(self, dtype):
        data = PROBLEMS[self.table[1]][0]
        return {name: x.to(dtype) if x.dtype.is_floating_point else x.clone() for name, x in data.items()}

    def make_problem(self, data):
        return PROBLEMS[self.table[1]][1](**data)

    def run(self, solver, problem, x0, iterations):
        return lmd.run(solver, problem, x0, iterations)

    def advanced(self, data):
        """The points after all iterations at once."""
        problem, x0, solver = self._begin(data)
        with torch.no_grad():
            state = solver.advance(problem, solver.init(problem, x0), self.iterations)
        return {"x": state.x} | ({} if getattr(state, "dual", None) is None else {"dual": state.dual})

    def test_the_kernels_do_not_matter(self):
        data = self.data(F32)
        with compiled(None):
            expected, points = self._solve(data), self.advanced(data)
        for build in kernels.BUILDS.get(torch.backends.cpu.get_cpu_capability(), (kernels.PLAIN)):
            with compiled(build):
                self._same(self._solve(data), expected, build)
                self._same(self.advanced(data), points, f"{build}, all steps at once")

    def test_the_threads_do_not_matter(self, threads):
        data = self.data(F32)
        with threads(1):
            expected = self.advanced(data)
        with threads(2):
            self._same(self.advanced(data), expected, "two threads")


UNGUARDED = {"simplex", "penalised", "classifier"}
"""Problems that no fall-back is known for, or none that is cheap here."""


ALIKE = {"denoising in colour", "isotropic denoising", "inpainting in colour", "box"}
"""Problems that others stand for where solvers are guarded."""

GUARDED = {
    "FGP",
    "PDHG on the lasso",
    "LearnedDual in colour",
    "LearnedSaddle",
    "RelaxedPDHG on sinograms",
    "CirculantADMM",
    "ADMM with blocks",
    "ADMM learned",
    "LearnedGradient",
    "LearnedInteriorPoint",
    "MirrorDescent",
}
"""A solver for each problem that has a fall-back: the cases that are tested guarded in the fast suite too."""


def add_classes():
    """A test class for each case, bare, and guarded where there is a fall-back for the problem.

    The fast suite has every solver of the table bare, one guarded for each problem, and one trained solver of each
    task; the others are slow.
    """
    fast = {*SOLVERS, *{task: name for name, task in TASKS.items()}.values()}
    for name, (_, problem) in CASES.items():
        for guarded in (False, True) if problem not in UNGUARDED else (False,):
            label = f"Test {'guarded ' if guarded else ''}{name}"
            case = type(label, (Conformance,), {"case": name, "guarded": guarded})
            if name not in (GUARDED if guarded else fast):
                case = pytest.mark.slow(case)
            globals()[label.replace(" ", "_").replace("-", "_")] = case


add_classes()


def test_none_is_forgotten():
    exported = {getattr(solvers, name) for name in solvers.__all__}
    kinds = {kind for kind in exported if isinstance(kind, type) and issubclass(kind, solvers.Solver)}
    assert kinds - {type(make()) for make, _ in SOLVERS.values()} == {solvers.Solver}
    assert {SOLVERS[name][1] for name in GUARDED} >= {problem for _, problem in SOLVERS.values()} - UNGUARDED - ALIKE


# The suite itself: it notices each way of being wrong.


class Plain(Conformance):
    """Gradient descent on images, which the wrong solvers below are variants of."""

    kind = solvers.GradientDescent
    problem = "denoising in colour"
    table = property(lambda self: (lambda: self.kind(0.01), self.problem))


def step(change):
    """Gradient descent whose points are changed by `change(points, state before)` after each step."""

    def changed(self, problem, state):
        after = solvers.GradientDescent.step(self, problem, state)
        return replace(after, x=change(after.x, state.x))

    return {"step": changed}


def in_memory_order(x, before):
    """Reads the numbers of x in the order they lie in memory."""
    ordered = torch.empty_like(before).copy_(x)
    return ordered.as_strided(ordered.shape, torch.empty(ordered.shape).stride())


def in_place(x, before):
    before.mul_(0.9)
    return x


def one_step_late(self, problem, state, count):
    return replace(solvers.Solver.advance(self, problem, state, count - 1), iteration=state.iteration + count)


def by_default_dtype(x, before):
    return x + 0.01 * (torch.zeros(()).dtype == F64)


WRONG_SOLVERS = [
    ("layout", step(in_memory_order), "the_layout_in_memory", (F32,)),
    ("shared memory", step(lambda x, before: x + 0.01 * (before.stride()[0] == 0)), "instances_that_share", (F64,)),
    ("in place", step(in_place), "the_layout_in_memory", (F32,)),
    ("default dtype", step(by_default_dtype), "the_default_dtype", (F32,)),
    ("other dtype", step(lambda x, before: x.double()), "the_default_dtype", (F32,)),
    ("rounding", step(lambda x, before: x + 0.1 * (x.dtype == F32)), "float32_agrees", ()),
    ("a traceback", {"init": lambda self, problem, x0: [][0]}, "a_solver_of_another_dtype", (F32,)),
    ("mixed", step(lambda x, before: x - 0.1 * x.mean()), "an_instance_of_a_batch", (F64,)),
    ("late", {"advance": one_step_late}, "many_steps_at_once", (F64,)),
    ("threads", step(lambda x, before: x + 0.01 * (torch.get_num_threads() > 1)), "the_threads", ("threads",)),
    ("kernels", step(lambda x, before: x + 0.01 * (kernels.library() is not None)), "the_kernels", ()),
]


def named(suite, name):
    (found,) = [method for method in dir(suite) if method.startswith(f"test_{name}")]
    return getattr(suite, found)


@pytest.mark.parametrize(
    ("change", "name", "arguments"), [row[1:] for row in WRONG_SOLVERS], ids=[row[0] for row in WRONG_SOLVERS]
)
def test_a_solver_that_is_wrong_is_noticed(change, name, arguments, threads):
    suite, arguments = Plain(), [threads if given == "threads" else given for given in arguments]
    named(suite, name)(*arguments)  # right before it is made wrong
    suite.kind = type("Wrong", (solvers.GradientDescent,), change)
    with pytest.raises((AssertionError, IndexError)):
        named(suite, name)(*arguments)


def test_the_suite_says_what_to_give_it():
    suite = SolverConformance()
    for call, words in (
        (lambda: suite.make_solver(F32), "which solver"),
        (lambda: suite.data(F32), "made of"),
        (lambda: suite.make_problem({}), "what the problem is"),
    ):
        with pytest.raises(NotImplementedError, match=words):
            call()


def test_a_suite_without_certificates_runs_too():
    class Bare(Plain):
        def run(self, solver, problem, x0, iterations):
            return SolverConformance.run(self, solver, problem, x0, iterations)

    Bare().test_an_instance_of_a_batch_is_the_instance_alone(F32)
