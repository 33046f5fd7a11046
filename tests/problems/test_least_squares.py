import math

import pytest
import torch
from torch.testing import assert_close

from lmd.errors import InputError
from lmd.problems import LeastSquares, LeastSquaresFamily


def test_by_hand():
    problem = LeastSquares(torch.tensor([[2.0, 1.0], [1.0, 2.0]]), torch.tensor([[3.0, 3.0], [0.0, 0.0]]))
    x = torch.tensor([[0.0, 0.0], [1.0, -1.0]])
    assert_close(problem.value(x), torch.tensor([18.0, 2.0]))
    assert_close(problem.subgradient(x), torch.tensor([[-18.0, -18.0], [2.0, -2.0]]))
    assert_close(problem.minimiser(), torch.tensor([[1.0, 1.0], [0.0, 0.0]]))
    assert_close(problem.minimum(), torch.zeros(2), atol=1e-10, rtol=0)


def test_the_papers_matrix_has_the_eigenvalues_1_and_9():
    problem, _ = LeastSquaresFamily().sample(3, torch.Generator().manual_seed(0))
    assert_close(problem.strong_convexity.item(), 2.0)
    assert_close(problem.smoothness.item(), 18.0)


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 4)], ids=["tall", "wide", "square"])
def test_the_subgradient_vanishes_at_the_minimiser(shape):
    generator = torch.Generator().manual_seed(0)
    problem = LeastSquares(
        torch.randn(shape, dtype=torch.float64, generator=generator),
        torch.randn(7, shape[0], dtype=torch.float64, generator=generator),
    )
    assert_close(
        problem.subgradient(problem.minimiser()), torch.zeros(7, shape[1], dtype=torch.float64), atol=1e-12, rtol=0
    )
    assert problem.strong_convexity >= 0
    assert bool(problem.strong_convexity < 1e-12) == (shape[1] > shape[0])


@pytest.mark.parametrize(
    ("W", "b", "words"),
    [
        (torch.ones(2), torch.ones(1, 2), r"W: got shape \(2,\), expected a matrix \(m, d\)"),
        ([[1.0]], torch.ones(1, 1), "W: got list"),
        (torch.ones(2, 2, dtype=torch.int64), torch.ones(1, 2), "W: got torch.int64"),
        (torch.tensor([[math.inf]]), torch.ones(1, 1), "W: got 1 non-finite entries"),
        (torch.ones(2, 3), torch.ones(4, 3), r"b: got shape \(4, 3\), expected shape \(B, 2\) to go with W \(2, 3\)"),
        (torch.ones(2, 3), torch.ones(2), r"b: got shape \(2,\), expected a batch"),
        (torch.ones(1, 1), torch.tensor([[math.nan]]), "b: got 1 non-finite entries"),
        (torch.ones(2, 3), torch.ones(1, 2).double(), "b: got torch.float64, expected torch.float32"),
    ],
)
def test_bad_arguments(W, b, words):
    with pytest.raises(InputError, match=r"^" + words):
        LeastSquares(W, b)


class TestFamily:
    def test_sample_is_standard_normal(self):
        problem, x0 = LeastSquaresFamily().sample(20_000, torch.Generator().manual_seed(0))
        for sample in (problem.b, x0):
            assert sample.shape == (20_000, 2) and sample.dtype == torch.float64
            assert_close(sample.mean(dim=0), torch.zeros(2, dtype=torch.float64), rtol=0, atol=5 / math.sqrt(20_000))
            assert_close(sample.T.cov(), torch.eye(2, dtype=torch.float64), rtol=0, atol=0.06)

    def test_a_matrix_and_dtype_of_your_own(self):
        problem, x0 = LeastSquaresFamily(torch.ones(3, 4), dtype=torch.float32).sample(
            2, torch.Generator().manual_seed(0)
        )
        assert (problem.b.shape, x0.shape, x0.dtype, problem.W.dtype) == ((2, 3), (2, 4), torch.float32, torch.float32)

    def test_bad_matrix(self):
        with pytest.raises(InputError, match=r"^W: got shape \(3,\)"):
            LeastSquaresFamily(torch.ones(3))
