"""Learned mirror descent with exact mirrors: its formula, and turned images with turned answers."""

import pytest
import torch
from torch.testing import assert_close

from lmd import zoo
from lmd.mirrors import Cosine, Separable
from lmd.problems import TVDenoising, TVInpainting
from lmd.problems.image_families import random_masks
from lmd.solvers import ExactMirrorDescent, run

MOVES = {
    "down": lambda z: z.flip(2),
    "across": lambda z: z.flip(3),
    "turn": lambda z: z.rot90(1, (2, 3)),
    "diagonal": lambda z: z.mT,
}


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("name", ["denoise", "inpaint"])
def test_turned_and_flipped_images_give_turned_and_flipped_answers(name: str, move: str) -> None:
    """Of the solvers that ship, in learned iterations and in the backtracked ones after them."""
    generator, turn = torch.Generator().manual_seed(0), MOVES[move]
    noisy = torch.rand(1, 2, 16, 16, generator=generator, dtype=torch.float64)
    mask = random_masks(1, 16, 16, 0.8, generator).double()
    solver = zoo.load(f"{name}-exact-10", bare=True).double()

    def answer(y: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        problem = TVDenoising(y, 0.3) if name == "denoise" else TVInpainting(kept * y, kept, 0.3)
        return run(solver, problem, problem.start(), 14).x

    assert_close(answer(turn(noisy), turn(mask)), turn(answer(noisy, mask)), rtol=0, atol=1e-11)


def test_momenta_are_those_of_the_last_two_steps() -> None:
    problem = TVDenoising(torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0)).double(), 0.3)
    solver = ExactMirrorDescent(Separable(Cosine(4)), 4, 0.5, 0.5).double()
    with torch.no_grad():
        solver.momenta.copy_(torch.tensor([[-1.0, 0.0], [0.3, 0.5], [0.4, -0.2], [0.1, 0.7]]))
        states = [solver.init(problem, problem.start())]
        for _ in range(4):
            states.append(solver.step(problem, states[-1]))
        points = [state.x for state in states]
        last, before = points[3] - points[2], points[2] - points[1]
        ahead = points[3] + 0.1 * last + 0.7 * before
        gradient, _ = problem.smoothed_gradient(ahead, 0.5)
    assert_close(points[4], ahead - gradient / 2)  # mirrors are squares to begin with
