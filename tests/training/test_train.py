import pytest
import torch

import lmd
from lmd import InputError
from lmd.core.files import read_json, read_tensors
from lmd.errors import CapabilityError, TrainingError, TrainingWarning
from lmd.problems import Family, LeastSquaresFamily


def untimed(result):
    return [{key: value for key, value in record.items() if key != "seconds"} for record in result.records]


def equal_weights(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


def test_the_least_squares_geometry_is_found(worker):
    result = lmd.train(
        worker.exact_solver(10), LeastSquaresFamily(), updates=300, batch=200, learning_rate=0.05, schedule="cosine"
    )
    matrix = result.solver.mirror.matrix.detach()
    assert float(matrix[0, 1] / matrix[0, 0]) == pytest.approx(0.8, abs=0.01)  # W'W has 4 beside 5
    problem, x0 = LeastSquaresFamily().sample(100, torch.Generator().manual_seed(99))
    assert float(lmd.run(result.solver, problem, x0, 10).values.max()) < 1e-8
    assert result.best_validation.value < 0.1 * result.curve("validation_value")[1][0]


def test_a_learned_inverse_becomes_consistent_and_the_solver_fast(worker):
    result = lmd.train(worker.rough_solver(), worker.BowlFamily(), updates=150, batch=32, learning_rate=0.02)
    _, inconsistency = result.curve("validation_inconsistency")
    _, value = result.curve("validation_value")
    assert inconsistency[-1] < 0.5 * inconsistency[0]
    assert value[-1] < value[0]
    assert result.updates == 150 and result.skipped == 0


def test_a_seed_decides_everything(worker):
    runs = [
        lmd.train(worker.rough_solver(), worker.BowlFamily(), updates=12, batch=4, log_every=1, seed=seed)
        for seed in (3, 3, 4)
    ]
    assert equal_weights(runs[0].solver, runs[1].solver)
    assert untimed(runs[0]) == untimed(runs[1])
    assert untimed(runs[0]) != untimed(runs[2])


def test_training_is_in_place_and_each_owner_applies_its_constraint():
    mirror = lmd.mirrors.Quadratic(2).double()
    solver = lmd.solvers.LearnedMirrorDescent(mirror, 5, initial_step=0.1, interval=(0.08, 0.11)).double()
    result = lmd.train(solver, LeastSquaresFamily(), updates=30, batch=16, learning_rate=0.05, validate_every=0)
    assert result.solver is solver
    sizes = solver.steps.sizes.detach()
    assert float(sizes.min()) >= 0.08 and float(sizes.max()) <= 0.11
    assert bool((sizes == 0.11).any() | (sizes == 0.08).any())  # the rate is bold enough to clip
    assert torch.equal(mirror.factor, mirror.factor.tril())
    assert result.best_validation is None


def test_frozen_parameters_stay(worker):
    solver = worker.rough_solver()
    solver.mirror.forwards.requires_grad_(False)
    before = solver.mirror.forwards.clone()
    lmd.train(solver, worker.BowlFamily(), updates=5, batch=4, validate_every=0)
    assert torch.equal(solver.mirror.forwards, before)
    assert not torch.equal(solver.mirror.backwards, worker.rough_solver().mirror.backwards)


def test_the_solver_ends_with_the_best_weights_on_validation(worker):
    # The rate is so high that the training soon makes things worse.
    wild = {"updates": 30, "batch": 8, "learning_rate": 0.5, "validate_every": 1, "consistency_growth": 1.0}
    result = lmd.train(worker.rough_solver(), worker.BowlFamily(), **wild)
    updates, losses = result.curve("validation_loss")
    best = min(range(len(losses)), key=losses.__getitem__)
    assert result.best_validation.updates == updates[best] < 30
    assert result.best_validation.loss(1.0) == losses[best] < losses[-1]
    shorter = lmd.train(
        worker.rough_solver(), worker.BowlFamily(), **{**wild, "updates": updates[best], "validate_every": 0}
    )
    assert equal_weights(result.solver, shorter.solver)


def test_the_best_is_judged_at_the_consistency_weight_of_the_moment(worker):
    growing = {
        "consistency_weight": 0.01,
        "consistency_growth": 1.5,
        "consistency_growth_every": 2,
        "learning_rate": 0.01,
    }
    result = lmd.train(worker.rough_solver(), worker.BowlFamily(), updates=60, batch=16, validate_every=5, **growing)
    _, losses = result.curve("validation_loss")
    assert losses[-1] > losses[0]  # the weight has grown, and so has every loss
    assert result.best_validation.updates > 40  # yet the late ones are better than the early ones would be now


@pytest.mark.parametrize("clip", [None, 1e-3, 1e9])
def test_gradients_are_clipped_to_the_norm(tmp_path, clip):
    solver = lmd.solvers.MirrorDescent(lmd.mirrors.Quadratic(2).double(), 0.1)
    arguments = {"updates": 1, "batch": 8, "iterations": 3, "clip_gradient": clip, "log_every": 1}
    result = lmd.train(solver, LeastSquaresFamily(), out=tmp_path / "run", **arguments)
    state = read_tensors(tmp_path / "run" / "checkpoints" / "updates-00000001.safetensors")
    used = float(state["optimiser/0.exp_avg"].norm()) / (1 - 0.9)  # Adam's first average is a tenth of the gradient
    _, (norm,) = result.curve("gradient_norm")
    assert norm > 1
    assert used == pytest.approx(1e-3 if clip == 1e-3 else norm)


def test_bad_batches_are_skipped_counted_and_logged(worker):
    result = lmd.train(
        worker.exact_solver(),
        worker.FaultyFamily(),
        updates=30,
        batch=4,
        max_skipped=0.9,
        log_every=100,
        validate_every=0,
    )
    skipped = [record for record in result.records if "reason" in record]
    assert result.skipped == len(skipped) == skipped[-1]["skipped"]
    assert 0 < result.skipped < 30
    assert all(record["loss"] is None and record["reason"] == "loss" for record in skipped)
    assert bool(torch.isfinite(result.solver.mirror.factor).all())


def test_a_gradient_that_explodes_is_skipped_too():
    class Cliff(Family):
        """f(x) = c |x| from x = 1: after one step t the value is about c^2 t, and its derivative about c^2."""

        def sample(self, batch, generator):
            c = 1e12 if generator.initial_seed() % 4 == 0 else 1.0
            return (lambda x: c * x.abs().sum(dim=1)), torch.ones(batch, 2)

    solver = lmd.solvers.GradientDescent(lmd.solvers.LearnedSteps(1))
    result = lmd.train(
        solver, Cliff(), updates=20, batch=1, iterations=1, max_skipped=20, validate_every=0, log_every=1
    )
    reasons = [record["reason"] for record in result.records if "reason" in record]
    assert 0 < result.skipped == len(reasons) < 20 and set(reasons) == {"gradient"}
    assert all(record["loss"] is not None for record in result.records)
    assert float(solver.steps.sizes.detach()) > 0.01  # and the sound batches have still taught it


def test_too_many_bad_batches_stop_the_run_with_advice(worker):
    with pytest.raises(TrainingError) as caught:
        lmd.train(worker.exact_solver(), worker.FaultyFamily(), updates=30, batch=4, max_skipped=2)
    message = str(caught.value)
    assert "3 batches" in message and "max_skipped allows 2" in message and "smaller learning_rate" in message
    assert "\n" not in message


def test_a_validation_that_is_not_finite_is_never_the_best(worker):
    class Overflowing(LeastSquaresFamily):
        def sample(self, batch, generator):
            problem, x0 = super().sample(batch, generator)
            return problem, x0 * (1e200 if generator.initial_seed() % 2 else 1.0)  # odd: the held-out batch

    with pytest.warns(TrainingWarning, match="its weights are those of the last update"):
        result = lmd.train(worker.exact_solver(), Overflowing(), updates=4, batch=4, validate_every=2)
    assert result.best_validation is None and result.improved is False
    assert result.records[-1]["validation_value"] is None
    assert result.curve("validation_value") == ([], [])


def test_a_callback_sees_the_log_and_can_end_the_training(worker):
    seen = []

    def stop_at_six(record):
        seen.append(record["updates"])
        return record["updates"] >= 6

    settings = {"updates": 50, "batch": 4, "log_every": 2, "validate_every": 6}
    result = lmd.train(worker.rough_solver(), worker.BowlFamily(), callback=stop_at_six, **settings)
    assert seen == [0, 2, 4, 6]
    assert result.updates == 6
    updates, rates = result.curve("learning_rate")
    assert updates == [2, 4, 6] and rates == [1e-3] * 3


def test_training_in_vain_is_said_and_recorded(worker, tmp_path):
    """The rate is so high that every update makes things worse."""
    wild = {"updates": 6, "batch": 8, "learning_rate": 50.0, "validate_every": 2, "consistency_growth": 1.0}
    with pytest.warns(TrainingWarning) as caught:
        result = lmd.train(worker.rough_solver(), worker.BowlFamily(), out=tmp_path / "run", **wild)
    (said,) = (str(warning.message) for warning in caught)
    assert "never improved" in said and "smaller learning_rate" in said and str(tmp_path / "run" / "log.jsonl") in said
    assert "the ones it came with" in said and "\n" not in said
    assert caught[0].filename == __file__
    assert result.improved is False and result.best_validation.updates == 0
    assert equal_weights(result.solver, worker.rough_solver())
    assert [record["improved"] for record in result.records] == [False] * 4
    assert read_json(tmp_path / "run" / "solver.json")["card"]["training"]["improved"] is False


def test_training_that_improves_says_nothing_and_so_does_one_that_nobody_looks_at(worker, tmp_path):
    settings = {"updates": 20, "batch": 8, "learning_rate": 0.02}
    result = lmd.train(worker.rough_solver(), worker.BowlFamily(), out=tmp_path / "run", **settings)
    assert result.improved is True and result.records[-1]["improved"] is True
    assert read_json(tmp_path / "run" / "solver.json")["card"]["training"]["improved"] is True
    blind = lmd.train(worker.rough_solver(), worker.BowlFamily(), validate_every=0, **settings)
    assert blind.improved is None


def test_any_family_of_plain_functions_will_do(worker):
    result = lmd.train(worker.rough_solver(), worker.StartsFamily(), updates=40, batch=8, learning_rate=0.02)
    assert result.best_validation.value < result.curve("validation_value")[1][0]


class Untidy(Family):
    def __init__(self, sample):
        self.answer = sample

    def sample(self, batch, generator):
        return self.answer


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (torch.ones(4, 2), "family: got a sample that is a Tensor, expected (problem, x0), x0 a tensor"),
        (
            (lambda x: x.sum(dim=1), torch.ones(3, 2)),
            "family: got a sample with x0 of shape (3, 2), expected x0 (4, ...)",
        ),
        ((lambda x: x.sum(dim=1), torch.full((4, 2), torch.nan)), "x0: got 8 non-finite entries"),
        ((lambda x: x.sum(), torch.ones(4, 2)), "one value per instance"),
        ((lambda x: x.sum(dim=1), torch.ones(4, 2, dtype=torch.float64)), "x0: got torch.float64"),
    ],
)
def test_a_family_that_answers_wrongly_gets_one_line(worker, answer, says):
    with pytest.raises(InputError) as caught:
        lmd.train(worker.rough_solver(), Untidy(answer), updates=1, batch=4)
    assert says in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"solver": torch.nn.Linear(1, 1)}, "solver: got Linear, expected an lmd.solvers.Solver"),
        ({"family": lambda x: x}, "family: got function, expected an lmd.problems.Family"),
        ({"solver": lmd.solvers.GradientDescent(0.1)}, "solver: got GradientDescent without parameters"),
        ({"resume": True}, "resume: got True without out"),
        ({"value_weights": [1.0]}, "value_weights: got 1 numbers"),
    ],
)
def test_what_cannot_be_trained_gets_one_line(worker, change, says):
    arguments = {"solver": worker.exact_solver(), "family": LeastSquaresFamily(), "updates": 1, **change}
    with pytest.raises(InputError) as caught:
        lmd.train(arguments.pop("solver"), arguments.pop("family"), **arguments)
    assert str(caught.value).startswith(says) and "\n" not in str(caught.value)


def test_a_solver_that_needs_more_of_the_problem_is_refused_before_it_starts():
    solver = lmd.solvers.LearnedPDHG(2)
    with pytest.raises(CapabilityError, match="which has no operator"):
        lmd.train(solver, LeastSquaresFamily(dtype=torch.float32), updates=1, iterations=2)


def test_progress_is_shown_when_asked_for_and_only_then(worker, capsys):
    arguments = {"updates": 3, "batch": 4, "validate_every": 0}
    lmd.train(worker.rough_solver(), worker.BowlFamily(), **arguments)
    assert capsys.readouterr() == ("", "")
    lmd.train(worker.rough_solver(), worker.BowlFamily(), progress=True, **arguments)
    shown = capsys.readouterr()
    assert shown.out == ""
    for part in ("training", "100%", "loss", "inconsistency"):
        assert part in shown.err


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_modes_without_gradients_change_nothing(mode):
    family = LeastSquaresFamily()

    def trained(solver):
        lmd.train(solver, family, updates=2, batch=4, progress=False)
        return [parameter.detach().clone() for parameter in solver.parameters()]

    def made():
        return lmd.solvers.LearnedMirrorDescent(lmd.mirrors.Quadratic(2).double(), iterations=2).double()

    expected, solver = trained(made()), made()
    with mode():
        found = trained(solver)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    for place in (torch.inference_mode(), torch.device("meta")):
        with place:
            hidden = made()
        with pytest.raises(lmd.InputError, match=r"solver: got weights .*, expected a solver that was made outside"):
            trained(hidden)
