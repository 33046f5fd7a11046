"""Cards are true: what they say was measured is measured again, and what they say made a solver is what would."""

import pytest
import torch

import lmd
from lmd import zoo
from lmd.core.files import sha256
from lmd.problems import TVDenoising
from lmd.reproduction import recipes
from lmd.reproduction.recipes import DISTANCE, GAP, data_sha256, held_out, measure
from lmd.solvers import Solver

SHIPPED = zoo.names()


def card_of(name: str) -> dict:  # type: ignore[type-arg]
    if not recipes.ships_for(name, "standard"):
        pytest.skip(f"its data ({zoo.card(name)['data']}) are not at hand: LMD_DATA")
    return zoo.card(name)


def measured(name: str, solver: Solver, preset: str) -> dict:  # type: ignore[type-arg]
    return measure(recipes.task_of(name), recipes.recipe(name), solver, preset)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_what_was_measured_is_measured_again(name: str) -> None:
    said = card_of(name)["measured"]
    found = measured(name, zoo.load(name, bare=True), "standard")
    assert found.keys() == said.keys()
    assert (found["instances"], found["iterations"]) == (said["instances"], said["iterations"])
    assert found[GAP] == pytest.approx(said[GAP], rel=0.1, abs=1e-12)
    if DISTANCE in said:
        assert found[DISTANCE] == pytest.approx(said[DISTANCE], abs=0.3)


@pytest.mark.parametrize("name", SHIPPED)
def test_what_made_it_is_what_would(name: str) -> None:
    card = card_of(name)
    made = recipes.recipe(name)
    assert card["data_sha256"] == data_sha256(made, "standard")
    assert card["command"] == f"lmd train {name} --preset standard --seed {card['seed']}"
    assert card["settings"] == {
        key: list(value) if isinstance(value, tuple) else value for key, value in made.settings["standard"].items()
    }
    assert card.get("weak", "") == made.weak
    assert card["measured"]["lmd"] and card["measured"]["torch"]
    folder = zoo.TRAINED / name
    assert sha256(folder / "weights.safetensors") in (folder / "solver.json").read_text()


def test_measuring_is_on_test_images_and_compares_with_the_minimiser() -> None:
    made = recipes.recipe("denoise-10")
    problem, x0 = held_out(made.family, made.source, 8, "quick")
    assert isinstance(problem, TVDenoising)
    solver = zoo.load("denoise-10", bare=True)
    result = lmd.run(solver.double(), problem, x0)
    gap = ((result.values - lmd.guarantees.minimum(problem)) / lmd.guarantees.minimum(problem)).mean()
    distance = -10 * (result.x - lmd.guarantees.minimiser(problem)).square().flatten(1).mean(dim=1).log10().mean()
    found = measured("denoise-10", solver, "quick")
    assert found[GAP] == pytest.approx(float(gap), rel=1e-2)
    assert found[DISTANCE] == pytest.approx(float(distance), abs=0.05)
    worse = measured("denoise-10", lmd.solvers.LearnedDual(10), "quick")
    assert worse[GAP] > found[GAP] and worse[DISTANCE] < found[DISTANCE]
    assert next(solver.parameters()).dtype == torch.float64  # measuring changes nothing
