"""Trained solvers by name: they load, they are small, and they do what their card says."""

from pathlib import Path

import pytest
import torch

import lmd
from lmd import zoo
from lmd.core.files import read_json
from lmd.errors import FileError, InputError
from lmd.reproduction import recipes
from lmd.reproduction.recipes import measure
from lmd.solvers import run, save

NAME = "least-squares-quadratic-10"


def test_every_shipped_solver_loads_runs_and_has_a_card() -> None:
    for name in zoo.names():
        solver = zoo.load(name)
        card = zoo.card(name)
        assert {"command", "seed", "data", "measured"} <= set(card)
        family = recipes.recipe(name).family("standard").inside  # nothing here needs solutions
        problem, x0 = family.sample(3 * getattr(family, "subsets", 1), torch.Generator().manual_seed(1))
        dtype = next(solver.parameters()).dtype
        result = run(solver, problem, x0.to(dtype))
        assert result.ok
        if recipes.ships_for(name, "standard"):  # the data it was trained on are at hand
            begun = problem.value(x0.to(dtype))  # impulses at a small weight: the start is the minimum
            assert bool((result.values <= begun).all()) and bool((result.values < begun).any())
        assert sum(path.stat().st_size for path in (zoo.TRAINED / name).iterdir()) < 2_000_000


def test_the_least_squares_solvers_ship() -> None:
    assert "least-squares-quadratic-10" in zoo.names()
    assert "least-squares-one-layer-10" in zoo.names()


def test_load_takes_a_folder_and_refuses_what_is_not_one(tmp_path: Path) -> None:
    solver = zoo.load("least-squares-quadratic-10")
    save(solver, tmp_path / "mine")
    again = zoo.load(tmp_path / "mine")
    assert all(torch.equal(a, b) for a, b in zip(solver.parameters(), again.parameters(), strict=True))
    with pytest.raises(InputError, match="did you mean least-squares-quadratic"):
        zoo.load("least-squares-quadratc")
    with pytest.raises(FileError, match=r"no solver\.json"):
        zoo.load(tmp_path)


def test_a_recipe_trains_deterministically(tmp_path: Path) -> None:
    one = recipes.train_recipe("least-squares-quadratic-10", "quick", seed=3)
    two = recipes.train_recipe("least-squares-quadratic-10", "quick", seed=3, out=tmp_path / "run")
    other = recipes.train_recipe("least-squares-quadratic-10", "quick", seed=4)
    card = read_json(tmp_path / "run" / "solver.json")["card"]
    assert card["command"].endswith("--seed 3") and card["improved"] is True and card["settings"]["batch"] == 100
    assert card["measured"] == measure(recipes.task_of(NAME), recipes.recipe(NAME), two, "quick")
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_the_imaging_solvers_ship_and_solve_images_larger_than_they_were_trained_on() -> None:
    for name in ("denoise-pair-10", "inpaint-pair-10"):
        assert name in zoo.names()
        assert zoo.card(name)["data"] == "photographs"
        family = recipes.recipe(name).family("standard")
        family.crop = 96  # type: ignore[attr-defined]
        problem, x0 = family.sample(2, torch.Generator().manual_seed(0))
        result = run(zoo.load(name), problem, x0, iterations=20)
        assert result.ok
        excess = result.history.values - lmd.guarantees.minimum(problem)  # type: ignore[attr-defined]
        assert bool((excess[10] < 0.3 * excess[0]).all())
        assert bool((excess[20] < 0.3 * excess[0]).all())


def test_the_published_imaging_solvers_have_the_published_size_and_train_at_paper_size_alone() -> None:
    for name in ("denoise-published-10", "inpaint-published-10"):
        mirror = recipes.recipe(name).solver(0).mirror
        assert (mirror.forward_net.width, mirror.backward_net.width) == (60, 75)
        with pytest.raises(InputError, match="paper"):
            recipes.train_recipe(name, "quick")


def test_a_name_says_task_form_iterations_and_speed() -> None:
    for name in recipes.names():
        task, recipe = recipes.task_of(name), recipes.recipe(name)
        words = [task.name, recipe.form, str(recipe.iterations), "fast" if recipe.fast else ""]
        assert name == "-".join(filter(None, words))
        assert recipe.solver(0).horizon == recipe.iterations
    assert len(set(recipes.names())) == len(recipes.names())
    assert set(zoo.names()) <= set(recipes.names())


def test_a_solver_is_found_by_its_problem_too():
    for alias, name in zoo.ALIASES.items():
        assert name in zoo.names() and zoo.card(alias) == zoo.card(name)
