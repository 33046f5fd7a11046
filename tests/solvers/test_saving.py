import json

import pytest
import torch
from torch.testing import assert_close

import lmd
from lmd.core.files import read_json, read_tensors, write_json, write_tensors
from lmd.errors import FileError, InputError
from lmd.mirrors import Entropic, OneLayer, Quadratic
from lmd.solvers import Adam, BestSoFar, GradientDescent, LearnedMirrorDescent, MirrorDescent, load, save
from lmd.solvers.saving import SOLVER_FILE, WEIGHTS_FILE, load_weights
from lmd.solvers.steps import FixedSteps


def trained(dtype=torch.float32):
    solver = LearnedMirrorDescent(OneLayer.random(2, torch.Generator().manual_seed(0)), 4, extension="mean")
    with torch.no_grad():
        solver.steps.sizes.copy_(torch.tensor([0.01, 0.02, 0.03, 0.05]))
    return solver.to(dtype)


@pytest.fixture
def folder(tmp_path):
    return save(trained(), tmp_path / "solver", card={"trained_on": "nothing"})


@pytest.mark.parametrize(
    "solver",
    [
        trained(),
        trained(torch.float64),
        BestSoFar(trained()),
        GradientDescent(FixedSteps(0.1, 0.5)),
        Adam(0.1),
        MirrorDescent(Quadratic(2), 0.05),
    ],
    ids=["learned", "float64", "wrapped", "gradient", "adam", "mirror"],
)
def test_a_loaded_solver_gives_the_same_answers(solver, tmp_path):
    again = load(save(solver, tmp_path / "solver"))
    assert type(again) is type(solver) and again.horizon == solver.horizon
    parameter = next(solver.parameters(), torch.zeros(()))
    x0 = 0.1 * torch.ones(3, 2, dtype=parameter.dtype)
    problem = lmd.problems.LeastSquares(torch.eye(2, dtype=x0.dtype), torch.ones(3, 2, dtype=x0.dtype))
    one, other = (lmd.run(each, problem, x0, iterations=8) for each in (solver, again))
    assert torch.equal(one.x, other.x) and torch.equal(one.history.values, other.history.values)


def test_a_loaded_solver_can_be_trained_on(folder):
    solver = load(folder)
    assert all(parameter.requires_grad and parameter.is_leaf for parameter in solver.parameters())


def test_what_is_in_the_folder(folder):
    assert sorted(path.name for path in folder.iterdir()) == [SOLVER_FILE, WEIGHTS_FILE]
    description = json.loads((folder / SOLVER_FILE).read_text())
    assert description["format"] == 1 and description["card"]["trained_on"] == "nothing"
    assert description["solver"]["mirror"]["type"] == "OneLayer"
    assert set(read_tensors(folder / WEIGHTS_FILE)) == set(trained().state_dict())


class TestSaving:
    def test_other_weights_in_place_of_its_own(self, tmp_path):
        solver = trained()
        weights = {name: tensor.clone() for name, tensor in solver.state_dict().items()}
        weights["steps.sizes"] = torch.full((4,), 0.07)
        assert_close(load(save(solver, tmp_path, weights=weights)).steps.sizes.detach(), torch.full((4,), 0.07))
        assert solver.steps.sizes[0] == 0.01

    @pytest.mark.parametrize("card", [{"note": float("nan")}, {"note": torch.zeros(1)}])
    def test_a_card_that_cannot_be_written_leaves_the_old_solver_whole(self, card, folder):
        with pytest.raises(InputError, match=r"^card: got "):
            save(GradientDescent(0.1), folder, card=card)
        assert isinstance(load(folder), LearnedMirrorDescent)

    def test_a_file_in_the_way(self, tmp_path):
        (tmp_path / "file").write_text("kept")
        with pytest.raises(FileError, match=r"^folder: got .*file, where a file is in the way"):
            save(trained(), tmp_path / "file")
        assert (tmp_path / "file").read_text() == "kept"

    def test_saving_again_replaces(self, folder):
        save(GradientDescent(0.1), folder)
        assert isinstance(load(folder), GradientDescent)


def rewrite(change):
    """A damage that changes the description."""

    def damage(folder):
        description = read_json(folder / SOLVER_FILE)
        write_json(folder / SOLVER_FILE, change(description))

    return damage


def cut(name, size):
    """A damage that keeps only the first bytes of a file."""

    def damage(folder):
        (folder / name).write_bytes((folder / name).read_bytes()[:size])

    return damage


DAMAGES = {
    "no description": (lambda folder: (folder / SOLVER_FILE).unlink(), "solver: got .* has no solver.json"),
    "no weights": (lambda folder: (folder / WEIGHTS_FILE).unlink(), "file: got no file .*weights.safetensors"),
    "empty description": (cut(SOLVER_FILE, 0), "file: got .*solver.json, damaged or half-written"),
    "half a description": (cut(SOLVER_FILE, 50), "file: got .*solver.json, damaged or half-written"),
    "empty weights": (cut(WEIGHTS_FILE, 0), "file: got .*weights.safetensors, damaged or half-written"),
    "half the header": (cut(WEIGHTS_FILE, 40), "file: got .*weights.safetensors, damaged or half-written"),
    "half the weights": (cut(WEIGHTS_FILE, -7), "file: got .*weights.safetensors, damaged or half-written"),
    "a list": (rewrite(lambda d: [d]), "solver: got .*solver.json, expected a solver of format 1"),
    "later format": (rewrite(lambda d: {**d, "format": 2}), "solver: got .*solver.json, expected a solver of format 1"),
    "no solver": (rewrite(lambda d: {**d, "solver": None}), "configuration: got NoneType"),
    "unknown type": (rewrite(lambda d: {**d, "solver": {"type": "Magic"}}), "configuration type: got 'Magic'"),
    "a mirror": (
        rewrite(lambda d: {**d, "solver": {"type": "Euclidean"}}),
        "solver: got .*, a Euclidean, expected a solver",
    ),
    "bad argument": (
        rewrite(lambda d: {**d, "solver": {**d["solver"], "iterations": -1}}),
        "iterations: got -1, expected a whole number",
    ),
    "other solver": (
        rewrite(lambda d: {**d, "solver": {"type": "GradientDescent"}}),
        "weights: got names that differ: .*, expected those of GradientDescent",
    ),
    "other size": (
        rewrite(lambda d: {**d, "solver": {**d["solver"], "iterations": 5}}),
        r"weights: got steps.sizes of shape \(4,\), expected shape \(5,\)",
    ),
    "a size beyond all weights": (
        rewrite(lambda d: {**d, "solver": {**d["solver"], "iterations": 10**12}}),
        "solver: got sizes that its weights do not have, expected at most",
    ),
    "a dimension beyond all weights": (
        rewrite(lambda d: {**d, "solver": {**d["solver"], "mirror": {"type": "Quadratic", "dimension": 10**9}}}),
        "solver: got sizes that its weights do not have, expected at most",
    ),
    "a kernel beyond all weights": (
        rewrite(lambda d: {**d, "solver": {"type": "LearnedDual", "iterations": 4, "kernel": 10**5 + 1}}),
        "solver: got sizes that its weights do not have, expected at most",
    ),
    "more than a tensor can have": (
        rewrite(lambda d: {**d, "solver": {**d["solver"], "iterations": 10**30}}),
        "solver: got sizes that its weights do not have, expected at most",
    ),
    "steps that are no number": (
        rewrite(lambda d: {**d, "solver": {"type": "PDHG", "tau": 10**400}}),
        "solver: got .*solver.json, which does not fit",
    ),
    "other weights": (
        lambda folder: write_tensors(folder / WEIGHTS_FILE, {"a": torch.zeros(1)}),
        "solver: got .*weights.safetensors, other weights than solver.json names, expected matching files",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_folder_is_refused_in_one_line(name, folder):
    damage, words = DAMAGES[name]
    load(folder)
    damage(folder)
    with pytest.raises(InputError, match="^" + words) as caught:
        load(folder)
    assert "\n" not in str(caught.value)


def test_no_folder(tmp_path):
    with pytest.raises(
        FileError, match=r"^solver: got .*none, which has no solver\.json, expected a folder that lmd wrote"
    ):
        load(tmp_path / "none")


class TestWeights:
    def weights(self, **changes):
        return {**trained().state_dict(), **changes}

    def test_numbers_that_are_not_finite(self):
        with pytest.raises(InputError, match=r"^weights steps\.sizes: got 1 non-finite entries, the first at \(2,\)"):
            load_weights(trained(), self.weights(**{"steps.sizes": torch.tensor([0.1, 0.1, float("nan"), 0.1])}))

    def test_whole_numbers(self):
        with pytest.raises(
            InputError, match=r"^weights: got steps\.sizes of torch\.int64, expected torch.float32 or torch.float64"
        ):
            load_weights(trained(), self.weights(**{"steps.sizes": torch.ones(4, dtype=torch.int64)}))

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_numbers_that_no_solver_runs_in(self, dtype, tmp_path):
        with pytest.raises(InputError, match=r"^weights: got .* of torch\..*float16, expected torch.float32 or torch"):
            load(save(trained(dtype), tmp_path))

    def test_two_dtypes_at_once(self):
        weights = self.weights(**{"steps.sizes": torch.full((4,), 0.05, dtype=torch.float64)})
        with pytest.raises(InputError, match=r"^weights: got torch.float32 and torch.float64 together, expected one"):
            load_weights(trained(), weights)

    def test_the_dtype_comes_with_the_weights(self):
        solver = load_weights(trained(), trained(torch.float64).state_dict())
        assert {parameter.dtype for parameter in solver.parameters()} == {torch.float64}

    def test_a_solver_without_weights(self, tmp_path):
        assert isinstance(load(save(MirrorDescent(Entropic(), 0.1), tmp_path)).mirror, Entropic)


def test_a_folder_of_absurd_sizes_takes_no_memory(folder):
    """A hundred million numbers, which this machine has room for, are refused as well."""
    rewrite(lambda d: {**d, "solver": {**d["solver"], "iterations": 10**8}})(folder)
    begun = peak_memory()
    with pytest.raises(InputError, match="sizes that its weights do not have"):
        load(folder)
    assert peak_memory() - begun < 10**8


def peak_memory():
    resource = pytest.importorskip("resource")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_what_is_loaded_in_inference_mode_can_be_trained(tmp_path):
    save(trained(), tmp_path)
    with torch.inference_mode():
        solver = load(tmp_path)
    assert not any(each.is_inference() for each in solver.state_dict().values())
