"""`lmd.optim.MirrorDescent`: the steps of `lmd.solvers.MirrorDescent`, driven as PyTorch drives its optimisers."""

import io

import pytest
import torch

import lmd
from lmd.mirrors import DiagonalQuadratic, Entropic, Euclidean, EuclideanBox, OneLayer, Quadratic
from lmd.optim import MirrorDescent

MIRRORS = {
    "entropic": Entropic,
    "box": EuclideanBox,
    "quadratic": lambda: Quadratic.from_matrix(torch.diag(torch.arange(1.0, 5.0))),
    "one layer": lambda: OneLayer(4, weight=torch.full((4,), 20.0)),
}


def problem_of(dtype: torch.dtype) -> tuple[lmd.problems.LeastSquares, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    W, b = (torch.randn(*shape, generator=generator, dtype=dtype) for shape in ((6, 4), (3, 6)))
    return lmd.problems.LeastSquares(W, b), torch.full((3, 4), 0.25, dtype=dtype)


@pytest.mark.parametrize("name", MIRRORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_steps_are_those_of_the_solver(name, dtype):
    problem, start = problem_of(dtype)
    mirror = MIRRORS[name]().to(dtype)
    x = torch.nn.Parameter(start.clone())
    optimiser = MirrorDescent([x], lr=0.01, mirror=mirror)
    for _ in range(30):
        optimiser.zero_grad()
        problem.value(x).sum().backward()
        optimiser.step()
    solver = lmd.solvers.MirrorDescent(mirror, 0.01)
    state = solver.init(problem, start)
    for _ in range(30):
        state = solver.step(problem, state)
    assert not torch.allclose(x, start, atol=1e-3)
    assert torch.allclose(x, state.x, rtol=0, atol=8 * torch.finfo(dtype).eps)


def test_entropic_mirror_descent_by_its_own_formula():
    """x_i exp(-t g_i) / sum: the exponentiated gradient method, on one distribution and on rows of them."""
    generator = torch.Generator().manual_seed(1)
    costs = torch.randn(5, 7, generator=generator, dtype=torch.float64)
    rows = torch.nn.Parameter(torch.full((5, 7), 1 / 7, dtype=torch.float64))
    one = torch.nn.Parameter(torch.full((7,), 1 / 7, dtype=torch.float64))
    optimiser = MirrorDescent([rows, one], lr=0.3, mirror=Entropic())
    expected = torch.full((5, 7), 1 / 7, dtype=torch.float64)
    for _ in range(100):
        optimiser.zero_grad()
        ((rows * costs).sum() + (rows**2).sum() + one @ costs[0] + (one**2).sum()).backward()
        optimiser.step()
        expected = expected * torch.exp(-0.3 * (costs + 2 * expected))
        expected = expected / expected.sum(dim=1, keepdim=True)
    assert torch.allclose(rows, expected, rtol=1e-13, atol=1e-15)
    assert torch.allclose(one, expected[0], rtol=1e-13, atol=1e-15)


def test_groups_have_mirrors_and_rates_of_their_own_and_a_scheduler_changes_them():
    box, free = (torch.nn.Parameter(torch.full((2,), 0.5)) for _ in range(2))
    groups = [{"params": [box], "mirror": EuclideanBox(0.0, 1.0)}, {"params": [free], "lr": 0.1}]
    optimiser = MirrorDescent(groups, lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimiser, 1, gamma=0.1)
    (4 * box.sum() + 4 * free.sum()).backward()
    optimiser.step()
    scheduler.step()
    assert box.tolist() == [0.0, 0.0] and free.tolist() == pytest.approx([0.1, 0.1])
    optimiser.step()
    assert free.tolist() == pytest.approx([0.06, 0.06])


def test_a_closure_is_called_with_gradients_and_its_loss_comes_back():
    x = torch.nn.Parameter(torch.ones(3))
    optimiser = MirrorDescent([x], lr=0.5)

    def closure():
        optimiser.zero_grad()
        loss = x.square().sum() / 2
        loss.backward()
        return loss

    assert optimiser.step(closure).item() == 1.5
    assert x.tolist() == [0.5] * 3


def test_settings_come_back_from_a_file_that_holds_no_code():
    x = torch.nn.Parameter(torch.full((4,), 0.25))
    first, second = (MirrorDescent([x], lr=lr, mirror=Entropic()) for lr in (0.5, 0.1))
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    mirror = second.param_groups[0]["mirror"]
    second.load_state_dict(torch.load(file, weights_only=True))
    assert second.param_groups[0]["lr"] == 0.5 and second.param_groups[0]["mirror"] is mirror
    with pytest.raises(ValueError, match="group"):
        MirrorDescent([{"params": [x]}, {"params": [torch.nn.Parameter(torch.ones(1))]}]).load_state_dict(
            first.state_dict()
        )


def test_parameters_without_a_gradient_stay_and_scalars_move():
    still, number = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.tensor(2.0))
    optimiser = MirrorDescent([still, number], lr=0.25, mirror=Euclidean())
    number.square().backward()
    optimiser.step()
    assert still.tolist() == [1.0, 1.0] and number.item() == 1.0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: MirrorDescent([torch.nn.Parameter(torch.ones(2))], lr=0.0), "lr"),
        (lambda: MirrorDescent([torch.nn.Parameter(torch.ones(2))], mirror=Entropic()), "params"),
        (lambda: MirrorDescent([torch.nn.Parameter(torch.ones(2))], mirror="entropic"), "mirror"),
        (lambda: MirrorDescent([torch.nn.Parameter(torch.ones(2))], mirror=DiagonalQuadratic(3)), "params"),
    ],
)
def test_what_does_not_fit_is_refused_when_it_is_added(make, words):
    with pytest.raises(lmd.InputError, match=words):
        make()
