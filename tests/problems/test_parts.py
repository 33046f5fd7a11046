"""Problems put together from parts: those that have a name are the same problem, others are solved and proven."""

import pytest
import torch
from torch.testing import assert_close

import lmd
from lmd.errors import CapabilityError, InputError
from lmd.operators import Differences, Identity, Matrix
from lmd.problems import Composite, Lasso, TVDenoising
from lmd.solvers import FGP, PDHG, LearnedPDHG, Status
from lmd.terms import L1, Box, GroupNorm, Huber, KullbackLeibler, Shifted, Squares
from lmd.terms.wrappers import Boxed

F64 = torch.float64


def random(*shape, seed=0, dtype=F64):
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("isotropic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_tv_denoising_from_parts(isotropic, dtype):
    y, weight = random(3, 2, 7, 6, dtype=dtype), torch.tensor([0.1, 0.3, 1.0], dtype=dtype)
    named = TVDenoising(y, weight, isotropic)
    term = GroupNorm(weight, axes=(2,)) if isotropic else L1(weight)
    parts = Composite(Squares(y), (term, Differences((7, 6))), start=y)
    x, p = random(3, 2, 7, 6, seed=1, dtype=dtype), random(3, 2, 2, 7, 6, seed=2, dtype=dtype)
    for name, arguments in (("value", (x,)), ("gap", (x, p)), ("dual_value", (p,)), ("subgradient", (x,))):
        assert_close(getattr(parts, name)(*arguments), getattr(named, name)(*arguments), rtol=1e-4, atol=1e-4)
    for solver in (FGP(), PDHG()):
        mine, theirs = (lmd.run(solver, problem, y, iterations=20) for problem in (parts, named))
        assert_close(mine.x, theirs.x, rtol=1e-4, atol=1e-4)
        assert_close(mine.certificate.bound, theirs.certificate.bound, rtol=1e-3, atol=1e-5)


def test_the_lasso_from_parts():
    A, b = random(6, 9), random(2, 6, seed=1)
    named, parts = Lasso(A, b, 0.5), Composite(L1(0.5), (Squares(b, 0.5), Matrix(A)), start=random(2, 9, seed=2))
    x, q = random(2, 9, seed=3), random(2, 6, seed=4)
    assert_close(parts.value(x), named.value(x))
    assert_close(parts.gap(x, q), named.gap(x, q), rtol=1e-9, atol=1e-9)
    result = lmd.solve(parts, 1e-6)
    assert result.status == (Status.TOLERANCE_REACHED,) * 2
    assert_close(result.x, lmd.guarantees.minimiser(named), atol=1e-4, rtol=0)


def problems(dtype):
    """What has no name: a volume, Poisson counts, a fused lasso, Huber data, a box; with their own starts."""
    volume = random(2, 1, 4, 5, 6, dtype=dtype)
    isotropic = (GroupNorm(0.4, axes=(2,)), Differences((4, 5, 6), spacing=(2.0, 1.0, 1.0)))
    yield "volume", Composite(Squares(volume), isotropic, start=volume)
    counts = torch.poisson(torch.full((2, 30), 4.0), generator=torch.Generator().manual_seed(0)).to(dtype)
    yield "counts", Composite(KullbackLeibler(counts), (L1(0.5), Differences((30,))), start=counts + 1)
    signal = random(3, 25, dtype=dtype)
    fused = ((L1(0.5), Differences((25,))), (L1(0.2), Identity()))
    yield "fused lasso", Composite(Squares(signal), *fused, start=signal)
    yield "scaled stack", Composite(Squares(signal), *fused, start=signal, scales=(1.0, 0.5))
    robust = Shifted(Huber(1.0, delta=0.3), signal)
    yield "robust", Composite(Box(-1.0, 1.0), (robust, Identity()), (L1(0.3), Differences((25,))), start=0 * signal)
    mask = (random(3, 25, seed=1) > -0.5).to(dtype)
    low, high = (end.to(dtype) for end in (signal.amin(dim=1, keepdim=True), signal.amax(dim=1, keepdim=True)))
    data = Boxed(Squares(signal, weight=mask), low, high)
    yield "lost samples", Composite(data, (L1(0.4), Differences((25,))), start=signal)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_each_is_solved_and_its_certificate_holds(dtype):
    for name, problem in problems(dtype):
        exact = problem.double()
        best = lmd.solve(exact, 1e-7, solver=PDHG())
        assert set(best.status) == {Status.TOLERANCE_REACHED}, name
        for solver in (PDHG(), LearnedPDHG(4).to(dtype)):
            for iterations in (1, 10, 60):
                result = lmd.run(solver, problem, iterations=iterations)
                gap = exact.value(result.x.double()) - exact.value(best.x)
                assert bool((result.certificate.bound >= gap).all()), name
        assert bool((result.certificate.bound < 0.5 * problem.value(problem.start()).abs()).all()), name


def test_instances_are_on_their_own():
    for name, problem in problems(F64):
        together = lmd.run(PDHG(), problem, iterations=15)
        for i in range(2):
            part = problem.select(i)
            assert_close(lmd.run(PDHG(), part, iterations=15).x, together.x[i : i + 1], msg=name)


def test_what_the_parts_lack_is_said():
    y = random(2, 5)
    box = Composite(Box(0.0, 1.0), (Squares(y), Identity()), start=y.clamp(0, 1))
    with pytest.raises(CapabilityError, match=r"which has no f.strong_convexity.*which FGP needs"):
        lmd.run(FGP(), box)
    with pytest.raises(InputError, match=r"^behind: got nothing"):
        Composite(Squares(y), start=y)
    with pytest.raises(InputError, match=r"^f: got float, expected an lmd.terms.Term"):
        Composite(1.0, (Squares(y), Identity()), start=y)
    with pytest.raises(InputError, match=r"^x0: got shape \(2, 4\), expected shape \(2, 5\)"):
        lmd.run(PDHG(), box, y[:, :4])
