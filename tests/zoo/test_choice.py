"""Which trained solver is chosen for a problem and a tolerance."""

import torch

from lmd import zoo
from lmd.problems import TVDenoising
from lmd.zoo.choice import CHOICES, trained_solvers


def test_every_choice_ships_and_covers_all_tolerances():
    for choices in CHOICES.values():
        assert {name for _, name in choices} <= set(zoo.names())
        levels = [smallest for smallest, _ in choices]
        assert levels == sorted(levels, reverse=True) and levels[-1] == 0, "the last one is for all that is left"


def test_the_choice_is_by_parts_and_tolerance():
    parts = TVDenoising(torch.rand(1, 1, 4, 4), 0.3).parts
    assert trained_solvers(parts, 0.1) == ["denoise-7-fast", "denoise-20-fast"]
    assert trained_solvers(parts, 1e-3) == ["denoise-20-fast"]
    assert trained_solvers(("something", "else"), 1e-3) == []
