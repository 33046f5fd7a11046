import torch

from lmd.operators.base import norm_bound


def test_it_bounds_the_norm_of_a_matrix_without_negative_entries_and_comes_near():
    A = torch.rand(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    true = float(torch.linalg.matrix_norm(A, 2))
    assert true <= norm_bound(lambda v: v @ A.T @ A, (1, 5)) <= 1.0001 * true


def test_a_block_that_power_iterations_leave_behind_is_covered():
    A = torch.diag(torch.tensor([1.0, 1.0 - 1e-3, 0.0], dtype=torch.float64))
    assert 1 <= norm_bound(lambda v: v @ A.T @ A, (1, 3)) <= 1.001


def test_nothing_at_all_has_a_positive_bound():
    assert norm_bound(torch.zeros_like, (1, 3)) > 0
