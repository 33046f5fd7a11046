import math

import pytest
import torch
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from lmd.errors import InputError
from lmd.mirrors import DiagonalQuadratic, OneLayer, Quadratic
from lmd.testing.mirrors import MirrorConformance


def random_matrix(dimension, dtype):
    square = torch.randn(dimension, dimension, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    return (square @ square.T + torch.eye(dimension)).to(dtype)


class TestQuadratic(MirrorConformance):
    def make_mirror(self, dtype):
        return Quadratic.from_matrix(random_matrix(4, dtype))

    def points(self, batch, dtype, generator):
        return torch.randn(batch, 4, dtype=dtype, generator=generator)


class TestDiagonalQuadratic(MirrorConformance):
    def make_mirror(self, dtype):
        return DiagonalQuadratic(3, diagonal=torch.tensor([0.1, 1.0, 20.0], dtype=dtype))

    def points(self, batch, dtype, generator):
        return torch.randn(batch, 3, dtype=dtype, generator=generator)


def test_the_maps_are_those_of_the_matrix():
    matrix = random_matrix(4, torch.float64)
    mirror = Quadratic.from_matrix(matrix)
    x = torch.randn(7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert_close(mirror.matrix, matrix)
    assert_close(mirror.to_dual(x), x @ matrix)
    assert_close(mirror.to_primal(x), torch.linalg.solve(matrix, x.T).T)
    assert_close(mirror.potential(x), 0.5 * torch.einsum("bi,ij,bj->b", x, matrix, x))
    assert_close(mirror.strong_convexity, torch.linalg.eigvalsh(matrix)[0])


class Operations(TorchDispatchMode):
    """The names of all operations that torch carries out."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        self.names.append(function.name())
        return function(*arguments, **(options or {}))


FACTORISATIONS = (
    "cholesky_ex",
    "aten::cholesky",
    "linalg_cholesky",
    "lu_factor",
    "linalg_lu",
    "inv",
    "eigh",
    "svd",
    "qr",
)


def factorisations(names):
    triangular = ("cholesky_solve", "solve_triangular")
    suspects = [name for name in names if any(word in name for word in (*FACTORISATIONS, "solve"))]
    return [name for name in suspects if not any(word in name for word in triangular)]


@pytest.mark.parametrize("mirror", [Quadratic(3), DiagonalQuadratic(3), OneLayer(3)], ids=lambda m: type(m).__name__)
def test_nothing_is_factorised_in_a_call(mirror):
    x = 0.1 * torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    with Operations() as seen:
        mirror.potential(x)
        mirror.divergence(x, x + 0.1)
        mirror.to_primal(mirror.to_dual(x))
    assert seen.names and factorisations(seen.names) == []
    with Operations() as building:
        Quadratic.from_matrix(torch.eye(3))
    assert factorisations(building.names), "the test should notice a factorisation where there is one"


class TestConstraints:
    def test_the_factor_stays_triangular_with_a_positive_diagonal(self):
        mirror = Quadratic(2, floor=0.5)
        with torch.no_grad():
            mirror.factor.copy_(torch.tensor([[-1.0, 3.0], [2.0, 0.7]]))
        mirror.constrain_()
        assert_close(mirror.factor.detach(), torch.tensor([[0.5, 0.0], [2.0, 0.7]]))
        assert torch.linalg.eigvalsh(mirror.matrix)[0] > 0

    def test_the_diagonal_stays_above_its_floor(self):
        mirror = DiagonalQuadratic(3, floor=0.5)
        with torch.no_grad():
            mirror.diagonal.copy_(torch.tensor([-1.0, 0.1, 2.0]))
        mirror.constrain_()
        assert_close(mirror.diagonal.detach(), torch.tensor([0.5, 0.5, 2.0]))


class TestBadArguments:
    @pytest.mark.parametrize(
        ("matrix", "words"),
        [
            (torch.tensor([[1.0, 2.0], [0.0, 1.0]]), "a matrix that is not symmetric"),
            (torch.tensor([[1.0, 2.0], [2.0, 1.0]]), "a matrix that is not positive definite"),
            (torch.tensor([[1.0, 0.0], [0.0, math.nan]]), "1 non-finite entries"),
            (torch.eye(2, dtype=torch.int64), "torch.int64"),
            (torch.ones(2, 3), r"shape \(2, 3\), expected a square matrix"),
            (torch.tensor(1.0), r"shape \(\), expected a square matrix"),
            ([[1.0]], "list, expected a torch tensor"),
        ],
    )
    def test_matrix(self, matrix, words):
        with pytest.raises(InputError, match=r"^matrix: got " + words):
            Quadratic.from_matrix(matrix)

    def test_rounding_is_no_asymmetry(self):
        matrix = torch.tensor([[1.0, 1e-17], [-1e-17, 1.0]], dtype=torch.float64)
        assert_close(Quadratic.from_matrix(matrix).matrix, torch.eye(2, dtype=torch.float64))

    @pytest.mark.parametrize(
        ("diagonal", "words"),
        [
            (torch.tensor([1.0, 0.0]), "0, expected positive numbers"),
            (torch.tensor([1.0]), r"shape \(1,\), expected shape \(2,\)"),
            (torch.tensor([1, 2]), "torch.int64"),
            (torch.tensor([1.0, math.inf]), "1 non-finite"),
        ],
    )
    def test_diagonal(self, diagonal, words):
        with pytest.raises(InputError, match=r"^diagonal: got " + words):
            DiagonalQuadratic(2, diagonal=diagonal)

    @pytest.mark.parametrize("kind", [Quadratic, DiagonalQuadratic])
    def test_numbers(self, kind):
        with pytest.raises(InputError, match=r"^dimension: got 0"):
            kind(0)
        with pytest.raises(InputError, match=r"^floor: got 0"):
            kind(2, floor=0)

    @pytest.mark.parametrize(
        "mirror", [Quadratic(2), DiagonalQuadratic(2), OneLayer(2)], ids=lambda m: type(m).__name__
    )
    def test_points(self, mirror):
        for x in (torch.zeros(2), torch.zeros(4, 3), torch.zeros(1, 2, 2)):
            for call, name in ((mirror.potential, "x"), (mirror.to_dual, "x"), (mirror.to_primal, "y")):
                with pytest.raises(InputError, match=rf"^{name}: got shape .*, expected shape \(B, 2\)$"):
                    call(x)
        with pytest.raises(
            InputError, match=r"^x: got torch.float64 on cpu, expected torch.float32 on cpu, as the mirror"
        ):
            mirror.to_dual(torch.zeros(1, 2).double())


def test_what_was_given_is_not_learned_in_place():
    matrix, diagonal = torch.eye(2), torch.ones(2)
    for mirror in (Quadratic.from_matrix(matrix), DiagonalQuadratic(2, diagonal=diagonal)):
        with torch.no_grad():
            for parameter in mirror.parameters():
                parameter.mul_(5)
    assert torch.equal(matrix, torch.eye(2)) and torch.equal(diagonal, torch.ones(2))
