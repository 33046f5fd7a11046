import dataclasses

import pytest
import torch

from lmd.errors import InputError
from lmd.reproduction.datasets import digits as features
from lmd.reproduction.datasets.digits import SETTINGS, DigitData, Settings, digit_features, digits_data, train_network

QUICK = dataclasses.replace(SETTINGS["digits"], epochs=3)


@pytest.fixture
def digits():
    return digits_data("digits")


def test_the_features_that_ship_with_the_digits(digits, monkeypatch):
    monkeypatch.setattr(features, "train_network", None)  # nothing is trained: the network ships
    found = digit_features(digits)
    assert found.data_name == "digits"
    assert found.train_features.shape == (1200, 50) and found.test_features.shape == (597, 50)
    assert found.train_features.dtype == torch.float32 and float(found.train_features.min()) == 0
    assert bool((found.train_features.amax(dim=0) > 0).all())
    assert torch.equal(found.test_labels, digits.test_labels)
    assert 0.93 < found.accuracy < 1


def test_training_learns_and_depends_on_the_seed_alone(digits):
    before = torch.get_rng_state()
    first, again = train_network(digits, QUICK), train_network(digits, QUICK)
    other = train_network(digits, dataclasses.replace(QUICK, seed=1))
    assert torch.equal(torch.get_rng_state(), before)
    weights = [network.state_dict()["hidden.weight"] for network in (first, again, other)]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])
    with torch.no_grad():
        right = first(digits.test_images).argmax(dim=1) == digits.test_labels
    assert float(right.double().mean()) > 0.5


def test_what_was_trained_is_kept(digits, own_cache, monkeypatch):
    found = digit_features(digits, settings=QUICK)
    (file,) = (own_cache / "features").iterdir()
    assert file.name == f"digits-{found.key[:16]}.safetensors"
    trained = []

    def counted(data, settings):
        trained.append(settings)
        return train_network(data, settings)

    monkeypatch.setattr(features, "train_network", counted)
    again = digit_features(digits, settings=QUICK)
    assert trained == []
    assert torch.equal(again.train_features, found.train_features) and again.accuracy == found.accuracy
    file.write_bytes(file.read_bytes()[:100])
    repaired = digit_features(digits, settings=QUICK)
    assert trained == [QUICK] and torch.equal(repaired.test_features, found.test_features)


def test_other_data_or_settings_have_another_key(digits):
    keys = {digit_features(digits).key, digit_features(digits, settings=QUICK).key}
    changed = dataclasses.replace(digits, test_labels=digits.test_labels.roll(1))
    keys.add(digit_features(changed, settings=QUICK).key)
    assert len(keys) == 3


def test_a_cache_that_cannot_be_written_is_no_reason_to_fail(digits, own_cache):
    own_cache.write_text("in the way")
    with pytest.warns(UserWarning, match="features are not cached"):
        found = digit_features(digits, settings=QUICK)
    assert found.train_features.shape == (1200, 50)


def test_the_network_of_the_paper():
    network = features.FeatureNetwork(28, Settings())
    assert {name: tuple(weight.shape) for name, weight in network.named_parameters() if "weight" in name} == {
        "first.weight": (10, 1, 5, 5),
        "second.weight": (20, 10, 5, 5),
        "hidden.weight": (50, 320),
        "last.weight": (10, 50),
    }
    assert network(torch.zeros(3, 28, 28)).shape == (3, 10)


def test_bad_arguments(digits):
    own = DigitData("mine", *(getattr(digits, field.name) for field in dataclasses.fields(digits)[1:]))
    with pytest.raises(InputError, match=r"^data: got 'mine', expected one of mnist, digits$"):
        digit_features(own)
    with pytest.raises(InputError, match=r"^epochs: got 0"):
        digit_features(digits, settings=dataclasses.replace(QUICK, epochs=0))


def test_the_features_of_mnist(real_mnist, monkeypatch):
    monkeypatch.setattr(features, "train_network", None)
    data = digits_data("mnist", real_mnist)
    key = features._key(data, SETTINGS["mnist"])
    monkeypatch.setattr(features, "_key", lambda *_: key)  # of all images, though only some are looked at below
    found = digit_features(dataclasses.replace(data, train_images=data.train_images[:100]))
    assert found.accuracy > 0.98 and found.test_features.shape == (10_000, 50)


def test_the_default_dtype_is_not_that_of_the_network(digits, own_cache):
    settings = dataclasses.replace(QUICK, epochs=1)
    torch.set_default_dtype(torch.float64)
    try:
        trained = digit_features(digits, settings=settings)
        read = digit_features(digits, settings=settings)
    finally:
        torch.set_default_dtype(torch.float32)
    assert trained.train_features.dtype == torch.float32
    assert torch.equal(read.train_features, trained.train_features)
