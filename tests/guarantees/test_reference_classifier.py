import pytest
import torch
from torch.testing import assert_close

import lmd
from lmd.errors import CapabilityError, LmdError
from lmd.guarantees import minimiser, minimum, optimum
from lmd.problems import LinearClassifier


def pairs(sets, count, width, classes=3, seed=0, dtype=torch.float64):
    """Data sets whose classes overlap: the labels have nothing to do with the features."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(sets, count, width, dtype=dtype, generator=generator)
    return features, torch.randint(0, classes, (sets, count), generator=generator)


def test_separable_data_have_the_infimum_0_and_no_minimiser():
    features, labels = pairs(1, 10, 20)
    problem = LinearClassifier(features[0], labels[0], 3)
    found = optimum(problem)
    assert not bool(found.attained) and float(found.bound) == 0
    assert minimum(problem).tolist() == [0.0]
    with pytest.raises(CapabilityError, match=r"^problem: got LinearClassifier, of which instance 0 has no minimiser"):
        minimiser(problem)
    values = [float(problem.value(scale * found.x)) for scale in (1.0, 10.0, 100.0)]
    assert values[0] > values[1] > values[2] and values[2] < 1e-6
    assert float(problem.accuracy(found.x)) == 1


def test_overlapping_data_have_a_minimiser_with_a_certified_value():
    features, labels = pairs(1, 200, 3)
    problem = LinearClassifier(features[0], labels[0], 3)
    found = optimum(problem)
    assert bool(found.attained) and bool(found.gap <= 1e-10 * found.value)
    assert_close(problem.subgradient(found.x), torch.zeros_like(found.x), atol=1e-5, rtol=0)
    result = lmd.run(lmd.solvers.LBFGS(), problem, torch.zeros(1, 9, dtype=torch.float64), 100)
    assert float(result.values) == pytest.approx(float(found.value), rel=1e-9)
    assert float(found.bound) <= float(result.values) + 1e-12


def test_with_a_ridge_there_is_always_a_minimiser():
    features, labels = pairs(1, 10, 20)
    problem = LinearClassifier(features[0], labels[0], 3, ridge=0.01)
    found = optimum(problem)
    assert bool(found.attained) and bool(found.gap <= 1e-10 * found.value)
    result = lmd.run(lmd.solvers.LBFGS(), problem, torch.zeros(1, 60, dtype=torch.float64), 200)
    assert float(found.bound) - 1e-12 <= float(result.values) == pytest.approx(float(found.value), rel=1e-8)


def test_useless_and_repeated_features_and_a_class_without_pairs():
    features, labels = pairs(1, 200, 3)
    features = torch.cat([features[0], features[0], torch.zeros(200, 1)], dim=1)
    every = minimum(LinearClassifier(features, labels[0], 3))
    plain = minimum(LinearClassifier(features[:, :3], labels[0], 3))
    assert float(every) == pytest.approx(float(plain), rel=1e-9)
    more = minimum(LinearClassifier(features[:, :3], labels[0], 4, ridge=1e-3))
    assert float(more) > float(plain)


def test_an_infimum_above_0_that_nothing_attains_is_not_pretended_to():
    # The two classes overlap, and the third feature is 0 for all of class 0: its weight falls for ever.
    features, labels = pairs(1, 200, 3, classes=2)
    features[0, :, 2] = torch.where(labels[0] == 0, 0.0, features[0, :, 2].abs())
    with pytest.raises(LmdError, match=r"no certified infimum.*give the problem a ridge"):
        minimum(LinearClassifier(features[0], labels[0], 2))
    assert minimiser(LinearClassifier(features[0], labels[0], 2, ridge=1e-4)).shape == (1, 6)
