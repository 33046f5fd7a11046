import math

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

import lmd
from lmd.errors import InputError, LmdError
from lmd.problems.linear_classifier import LinearClassifier, LinearClassifierFamily


def pairs(sets, count, width, classes=3, seed=0, dtype=torch.float64):
    """Data sets whose classes overlap: the labels have nothing to do with the features."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(sets, count, width, dtype=dtype, generator=generator)
    return features, torch.randint(0, classes, (sets, count), generator=generator)


def plain(features, labels, x, classes, ridge=0.0):
    """The same functions by torch's own cross entropy, one data set per instance."""
    W = x.reshape(len(x), classes, -1)
    losses = [cross_entropy(phi @ w.T, y) for phi, y, w in zip(features, labels, W, strict=True)]
    return torch.stack(losses) + 0.5 * ridge * x.square().sum(dim=1)


class TestValueAndSubgradient:
    def test_by_hand(self):
        problem = LinearClassifier(torch.tensor([[1.0], [2.0]]), torch.tensor([0, 1]), classes=2)
        x = torch.tensor([[1.0, 0.0]])
        loss = (math.log1p(math.exp(-1)) + math.log1p(math.exp(2))) / 2
        wrong = 1 / (1 + math.exp(1)), 1 / (1 + math.exp(-2))
        assert_close(problem.value(x), torch.tensor([loss]))
        pull = (-wrong[0] + 2 * wrong[1]) / 2
        assert_close(problem.subgradient(x), torch.tensor([[pull, -pull]]))
        assert_close(problem.accuracy(x), torch.tensor([0.5]))

    @pytest.mark.parametrize("ridge", [0.0, 0.1])
    def test_the_derivatives_are_those_of_autograd(self, ridge):
        features, labels = pairs(2, 30, 4)
        problem = LinearClassifier(features, labels, 3, ridge, starts=2)
        x = torch.randn(4, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).requires_grad_()
        expected = plain(features[[0, 0, 1, 1]], labels[[0, 0, 1, 1]], x, 3, ridge)
        (slopes,) = torch.autograd.grad(expected.sum(), x)
        assert_close(problem.value(x), expected)
        assert_close(problem.subgradient(x), slopes)
        (by_value,) = torch.autograd.grad(problem.value(x).sum(), x)
        assert_close(by_value, slopes)
        with torch.no_grad():
            values, subgradients = problem.value_and_subgradient(x)
        assert_close(values, expected.detach())
        assert_close(subgradients, slopes)

    def test_training_can_differentiate_through_a_subgradient(self):
        features, labels = pairs(1, 10, 2)
        problem = LinearClassifier(features[0], labels[0], 3, ridge=0.1, starts=2)
        x = torch.randn(2, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).requires_grad_()
        assert torch.autograd.gradcheck(problem.value, x)
        assert torch.autograd.gradcheck(problem.subgradient, x)
        assert torch.autograd.gradgradcheck(problem.value, x)

    def test_chunks_and_parts_change_nothing(self, monkeypatch):
        features, labels = pairs(2, 30, 4)
        problem = LinearClassifier(features, labels, 3, starts=5)
        x = torch.randn(10, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
        values, subgradients = problem.value_and_subgradient(x)
        monkeypatch.setattr("lmd.problems.subsets.CHUNK", 200)  # two instances at a time
        assert_close(problem.value(x), values)
        assert_close(problem.subgradient(x), subgradients)
        mixed = torch.tensor([7, 0, 9, 1])
        part = problem.select(mixed)
        assert_close(part.value(x[mixed]), values[mixed])
        assert_close(part.subgradient(x[mixed]), subgradients[mixed])
        assert_close(part.accuracy(x[mixed]), problem.accuracy(x)[mixed])

    def test_scores_far_apart_neither_overflow_nor_lose_a_small_loss(self):
        problem = LinearClassifier(torch.ones(1, 1), torch.tensor([0]), classes=2, starts=4)
        x = torch.tensor([[-500.0, 500.0], [500.0, -500.0], [20.0, 0.0], [0.0, 0.0]])
        small = math.log1p(math.exp(-20))  # 2e-9, far below the rounding of 1 in float32
        assert_close(problem.value(x), torch.tensor([1000.0, 0.0, small, math.log(2)]), rtol=1e-6, atol=1e-20)
        slopes = torch.tensor([-1.0, 0.0, -math.exp(-20), -0.5])
        assert_close(problem.subgradient(x)[:, 0], slopes, rtol=1e-6, atol=1e-20)

    def test_the_smoothness_bounds_the_curvature_and_nearly_is_it(self):
        features, labels = pairs(1, 30, 4)
        problem = LinearClassifier(features[0], labels[0], 2 + 1, ridge=0.1)
        for point in (torch.zeros(1, 12, dtype=torch.float64), torch.ones(1, 12, dtype=torch.float64)):
            hessian = torch.autograd.functional.hessian(lambda x: problem.value(x).sum(), point).reshape(12, 12)
            largest = float(torch.linalg.eigvalsh(hessian)[-1])
            assert 0.5 * float(problem.smoothness) < largest <= float(problem.smoothness)
        assert float(problem.strong_convexity) == pytest.approx(0.1)


class TestInfimum:
    def test_separable_data_have_the_infimum_0_and_no_minimiser(self):
        features, labels = pairs(1, 10, 20)
        problem = LinearClassifier(features[0], labels[0], 3)
        (optimum,) = problem.optima()
        assert not optimum.attained and optimum.bound == 0
        assert problem.minimum().tolist() == [0.0] and problem.minimiser() is None
        values = [float(problem.value(scale * optimum.x[None])) for scale in (1.0, 10.0, 100.0)]
        assert values[0] > values[1] > values[2] and values[2] < 1e-6
        assert float(problem.accuracy(optimum.x[None])) == 1

    def test_overlapping_data_have_a_minimiser_with_a_certified_value(self):
        features, labels = pairs(1, 200, 3)
        problem = LinearClassifier(features[0], labels[0], 3)
        (optimum,) = problem.optima()
        assert optimum.attained and optimum.gap <= 1e-10 * optimum.value
        minimiser = problem.minimiser()
        assert_close(problem.subgradient(minimiser), torch.zeros_like(minimiser), atol=1e-5, rtol=0)
        result = lmd.run(lmd.solvers.LBFGS(), problem, torch.zeros(1, 9, dtype=torch.float64), 100)
        assert float(result.values) == pytest.approx(optimum.value, rel=1e-9)
        assert optimum.bound <= float(result.values) + 1e-12

    def test_with_a_ridge_there_is_always_a_minimiser(self):
        features, labels = pairs(1, 10, 20)
        problem = LinearClassifier(features[0], labels[0], 3, ridge=0.01)
        (optimum,) = problem.optima()
        assert optimum.attained and optimum.gap <= 1e-10 * optimum.value
        result = lmd.run(lmd.solvers.LBFGS(), problem, torch.zeros(1, 60, dtype=torch.float64), 200)
        assert optimum.bound - 1e-12 <= float(result.values) == pytest.approx(optimum.value, rel=1e-8)

    def test_useless_and_repeated_features_and_a_class_without_pairs(self):
        features, labels = pairs(1, 200, 3)
        features = torch.cat([features[0], features[0], torch.zeros(200, 1)], dim=1)
        (optimum,) = LinearClassifier(features, labels[0], 3).optima()
        (plain_optimum,) = LinearClassifier(features[:, :3], labels[0], 3).optima()
        assert optimum.value == pytest.approx(plain_optimum.value, rel=1e-9)
        (more,) = LinearClassifier(features[:, :3], labels[0], 4, ridge=1e-3).optima()
        assert more.value > plain_optimum.value

    def test_an_infimum_above_0_that_nothing_attains_is_not_pretended_to(self):
        # The two classes overlap, and the third feature is 0 for all of class 0: its weight falls for ever.
        features, labels = pairs(1, 200, 3, classes=2)
        features[0, :, 2] = torch.where(labels[0] == 0, 0.0, features[0, :, 2].abs())
        with pytest.raises(LmdError, match=r"no certified infimum.*give the problem a ridge"):
            LinearClassifier(features[0], labels[0], 2).minimum()
        assert LinearClassifier(features[0], labels[0], 2, ridge=1e-4).minimiser() is not None


class TestFamily:
    def family(self, **arguments):
        features, labels = pairs(1, 50, 4, classes=10)
        return LinearClassifierFamily(features[0], labels[0], **{"subset": 20, **arguments})

    def test_a_sample(self):
        problem, x0 = self.family(subsets=2, ridge=0.5).sample(4000, torch.Generator().manual_seed(1))
        assert problem.features.shape == (2, 20, 4) and problem.batch_size == 4000 and problem.ridge == 0.5
        assert x0.shape == (4000, 40) and abs(float(x0.std()) - 1) < 0.02

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ({"classes": 9}, "labels: got labels from 0 to 9, expected 0 to 8 for 9 classes"),
            ({"subset": 51}, "subset: got 51, expected at most 50"),
            ({"ridge": -0.1}, "ridge: got -0.1, expected a number of 0 or more"),
            ({"classes": 1}, "classes: got 1, expected a whole number of 2 or more"),
        ],
    )
    def test_bad_arguments(self, arguments, words):
        with pytest.raises(InputError, match="^" + words):
            self.family(**arguments)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (torch.tensor([0.0, 1.0]), "labels: got torch.float32, expected whole numbers"),
        (torch.tensor([True, False]), "labels: got torch.bool, expected whole numbers"),
        (torch.tensor([-1, 1]), "labels: got labels from -1 to 1, expected 0 to 9 for 10 classes"),
    ],
)
def test_bad_labels(labels, words):
    with pytest.raises(InputError, match="^" + words):
        LinearClassifier(torch.ones(2, 3), labels)


def test_a_start_of_another_width():
    problem = LinearClassifier(torch.ones(2, 3), torch.tensor([0, 1]), classes=2)
    with pytest.raises(InputError, match=r"^x0: got shape \(1, 8\), expected shape \(B, 6\) to go with features"):
        lmd.run(lmd.solvers.GradientDescent(0.1), problem, torch.zeros(1, 8))


def test_the_strong_convexity_is_the_ridge_to_the_bit():
    assert LinearClassifier(*pairs(1, 5, 2), classes=3, ridge=0.1).strong_convexity.item() == 0.1
