import pytest

from lmd import InputError
from lmd.training import TrainingSettings
from lmd.training.settings import training_seed, validation_seed


@pytest.mark.parametrize(
    ("setting", "value", "says"),
    [
        ("updates", 0, "a whole number of 1 or more"),
        ("batch", 2.5, "a whole number of 1 or more"),
        ("learning_rate", float("nan"), "a positive number"),
        ("schedule", "cosin", "did you mean cosine?"),
        ("warmup", 1000, "fewer than the 1000 updates of the run"),
        ("iterations", 0, "a whole number of 1 or more"),
        ("value_weights", "first", "one of all, last"),
        ("value_weights", [1.0, -1.0], "numbers of 0 or more"),
        ("value_weights", [0.0, 0.0], "not all of them 0"),
        ("value_weights", ["1"], "finite numbers of 0 or more"),
        ("consistency_weight", -1.0, "a number of 0 or more"),
        ("consistency_at", "everywhere", "one of iterates, start, all"),
        ("clip_gradient", 0.0, "a positive number"),
        ("recompute", "yes", "True or False"),
        ("seed", -1, "a whole number of 0 or more"),
        ("max_skipped", 1.5, "a whole number, or a fraction below 1"),
    ],
)
def test_a_wrong_setting_is_named_in_one_line(setting, value, says):
    with pytest.raises(InputError) as caught:
        TrainingSettings.from_arguments({setting: value})
    assert str(caught.value).startswith(f"{setting}: got ")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_setting_is_refused_with_the_nearest_name():
    with pytest.raises(InputError, match=r"setting: got 'lerning_rate'.*did you mean learning_rate\?"):
        TrainingSettings.from_arguments({"lerning_rate": 0.1})


def test_the_learning_rate_follows_its_schedule():
    constant = TrainingSettings(updates=100, learning_rate=0.4, warmup=4)
    assert [constant.learning_rate_at(done) for done in range(6)] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4])
    cosine = TrainingSettings(updates=104, learning_rate=0.4, warmup=4, schedule="cosine")
    assert [cosine.learning_rate_at(done) for done in (3, 4, 54)] == pytest.approx([0.4, 0.4, 0.2])
    assert cosine.learning_rate_at(103) < 1e-3
    assert cosine.learning_rate_at(104) == pytest.approx(0)


def test_the_consistency_weight_grows_as_in_the_paper():
    settings = TrainingSettings(updates_per_epoch=10)
    assert [settings.consistency_weight_at(done) for done in (0, 499, 500, 1000)] == pytest.approx(
        [1.0, 1.0, 1.05, 1.05**2]
    )


def test_the_value_weights():
    assert TrainingSettings().weights_for(3) == (1.0, 1.0, 1.0)
    assert TrainingSettings(value_weights="last").weights_for(3) == (0.0, 0.0, 1.0)
    assert TrainingSettings(value_weights=[1, 0, 2]).weights_for(3) == (1.0, 0.0, 2.0)
    with pytest.raises(InputError, match="value_weights: got 3 numbers, expected one for each of the 4 iterations"):
        TrainingSettings(value_weights=[1, 0, 2]).weights_for(4)


@pytest.mark.parametrize(("given", "allowed"), [(0, 0), (0.05, 10), (3, 3), (1, 1), (7.0, 7)])
def test_skips_are_a_number_or_a_fraction(given, allowed):
    assert TrainingSettings(updates=200, max_skipped=given).skips_allowed == allowed


def test_no_two_batches_of_a_run_share_a_seed_and_none_is_the_held_out_one():
    for seed in (0, 1, 12345678901):
        low_bits = {training_seed(seed, done) % 2**32 for done in range(5000)}
        assert len(low_bits) == 5000
        assert validation_seed(seed) % 2**32 not in low_bits
    assert training_seed(0, 0) != training_seed(1, 0)
