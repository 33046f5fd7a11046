"""By name, whatever comes in: the answer is finite and not above the start, and the run did not fail."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import lmd
from lmd import zoo
from lmd.guarantees import DescentSafeguard, Safeguard
from lmd.mirrors import ConvPair, Euclidean
from lmd.operators import ParallelBeam, gaussian_kernel
from lmd.problems import (
    SVM,
    Lasso,
    LeastSquares,
    LinearClassifier,
    Problem,
    TVDeblurring,
    TVDenoising,
    TVInpainting,
    TVTomography,
)
from lmd.solvers import FGP, LearnedMirrorDescent, save
from lmd.solvers.wrappers import NoWorseThanStart

SHIPPED = zoo.names()
KINDS = ("zero", "constant", "impulse", "checkerboard", "noise", "ramp", "bytes")
SCALES = (1e-6, 1.0, -1.0, 255.0, 1e6)


def odd_array(kind: str, scale: float, seed: int, *shape: int) -> Tensor:
    """Numbers such as people bring, of any shape."""
    generator = torch.Generator().manual_seed(seed)
    plain = torch.zeros(shape)
    places = plain.numel()
    if kind == "constant":
        plain += 1
    elif kind == "impulse":
        plain.view(-1)[seed % places] = 1
    elif kind == "checkerboard":
        plain = sum(torch.meshgrid(*(torch.arange(n) for n in shape), indexing="ij")).remainder(2).float()  # type: ignore[union-attr]
    elif kind == "noise":
        plain = torch.randn(shape, generator=generator)
    elif kind == "ramp":
        plain = torch.linspace(0, 1, places).reshape(shape)
    elif kind == "bytes":
        return torch.randint(256, shape, generator=generator).float()
    return scale * plain


def odd_problem(name: str, kind: str, scale: float, seed: int, size: tuple[int, int]) -> tuple[Problem, Tensor]:
    """A problem that the solver of that name is for, in the shape it takes, and a start."""
    name = name.removeprefix("exact-")
    if name.startswith("least-squares"):
        b, W = odd_array(kind, scale, seed, 3, 2), odd_array("noise", 1.0, seed + 1, 2, 2)
        return LeastSquares(W.double(), b.double()), odd_array("noise", scale, seed + 2, 3, 2).double()
    if name.startswith("lasso"):
        problem = Lasso(odd_array("noise", 0.1, seed, 100, 200), odd_array(kind, scale, seed, 3, 100), 0.1)
        return problem, torch.zeros(3, 200)
    features = odd_array(kind, scale, seed, 20, 50)
    if name.startswith("svm"):
        return SVM(features, 2 * (torch.arange(20) % 2) - 1, starts=3), odd_array("noise", 1.0, seed, 3, 51)
    if name.startswith("linear-classifier"):
        return LinearClassifier(features, torch.arange(20) % 10, starts=3), odd_array("noise", 0.1, seed, 3, 500)
    images = odd_array(kind, scale, seed, 2, 3, *size)
    if "inpaint" in name:
        mask = (torch.rand(size, generator=torch.Generator().manual_seed(seed)) < 0.7).float()
        mask[0, 0] = 1  # one pixel has to be kept
        image_problem: lmd.problems.tv.TVModel = TVInpainting(images * mask, mask, 0.3)
    elif name == "deblur-20":
        image_problem = TVDeblurring(images, gaussian_kernel(1.5) if min(size) > 9 else torch.ones(1, 1))
    elif name == "tomography-20":
        image_problem = TVTomography(ParallelBeam(*size)(images), size)
    else:
        image_problem = TVDenoising(images, 0.3, isotropic="isotropic" in name)
    return image_problem, image_problem.start()


@pytest.mark.parametrize("name", SHIPPED)
@settings(max_examples=12)
@given(
    kind=st.sampled_from(KINDS),
    scale=st.sampled_from(SCALES),
    seed=st.integers(0, 1000),
    size=st.sampled_from(((1, 1), (1, 3), (2, 2), (3, 3), (12, 17))),
    beyond=st.booleans(),
)
def test_no_answer_is_above_its_start(
    name: str, kind: str, scale: float, seed: int, size: tuple[int, int], beyond: bool
) -> None:
    solver = zoo.load(name)
    problem, x0 = odd_problem(name, kind, scale, seed, size)
    before = problem.value(x0)
    for record in (True, False):
        result = lmd.run(solver, problem, x0, (solver.horizon or 10) * (2 if beyond else 1), record=record)
        assert result.ok, result.status
        assert bool((result.values <= before).all()) and bool(torch.isfinite(result.values).all())
        assert bool(torch.isfinite(result.x).all())
        assert bool((problem.value(result.x) <= before).all())


@pytest.mark.parametrize("name", ["denoise-pair-10", "inpaint-pair-10"])
def test_networks_on_bytes_are_below_their_start_only_when_guarded(name: str) -> None:
    problem, x0 = odd_problem(name, "bytes", 1.0, 0, (12, 17))
    bare, guarded = (lmd.run(zoo.load(name, bare=kind), problem, x0) for kind in (True, False))
    assert bool((bare.values > 5 * problem.value(x0)).all())
    assert guarded.ok and bool((guarded.values < problem.value(x0)).all())
    assert guarded.certificate is not None and bool(torch.isfinite(guarded.certificate.bound).all())


def test_one_impulse_of_a_million_in_a_hole() -> None:
    """The bare solver of twenty iterations ends above its start there."""
    y, mask = torch.zeros(1, 1, 16, 16), torch.ones(1, 1, 16, 16)
    y[0, 0, 8, 8] = 1e6
    mask[0, 0, 4:8, 4:8] = 0
    problem = TVInpainting(y * mask, mask, 0.3)
    bare, safe = (lmd.run(zoo.load("inpaint-20", bare=kind), problem) for kind in (True, False))
    assert float(bare.values) > float(problem.value(problem.start())) >= float(safe.values)


def test_a_problem_of_your_own_without_a_known_fallback_is_never_above_its_start() -> None:
    """||x|| has no smoothness, and the steps are too long for it."""
    solver = zoo.add_safeguard(LearnedMirrorDescent(Euclidean(), 4, 3.0, (1.0, 5.0)))
    x0 = torch.tensor([[1.0, 0.0], [30.0, 40.0]])
    result = lmd.run(solver, lambda x: x.norm(dim=1), x0, iterations=12)
    assert result.ok and result.values[0] == 1 and float(result.values[1]) < 45


def test_what_is_guarded_how() -> None:
    for name in SHIPPED:
        bare, solver = zoo.load(name, bare=True), zoo.load(name)
        assert isinstance(solver, NoWorseThanStart if bare.ends_proven else Safeguard), name
        assert solver.horizon == bare.horizon and type(solver.solver) is type(bare)
        assert {parameter.dtype for parameter in solver.double().parameters()} == {torch.float64}


def test_what_is_safe_or_classical_is_left_alone() -> None:
    learned = LearnedMirrorDescent(Euclidean(), 4)
    for solver in (FGP(), Safeguard(learned), DescentSafeguard(learned), NoWorseThanStart(learned)):
        assert zoo.add_safeguard(solver) is solver


def test_a_folder_is_guarded_too_and_bare_on_request(tmp_path) -> None:  # type: ignore[no-untyped-def]
    folder = save(LearnedMirrorDescent(ConvPair(3, 4), 2), tmp_path / "mine")
    assert isinstance(zoo.load(folder), Safeguard)
    assert isinstance(zoo.load(folder, bare=True), LearnedMirrorDescent)
    again = save(zoo.load(folder), tmp_path / "guarded")
    assert isinstance(zoo.load(again).solver, LearnedMirrorDescent) and zoo.load(again).delay is None  # type: ignore[union-attr]
