import math

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.testing import assert_close

import lmd
from lmd.errors import InputError
from lmd.problems.classifiers import LinearClassifier, LinearClassifierFamily


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
        monkeypatch.setattr("lmd.problems.classifiers.MAX_SCORES", 200)  # two instances at a time
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
    with pytest.raises(InputError, match=r"^x0: got shape \(1, 8\), expected shape \(1, 6\)"):
        lmd.run(lmd.solvers.GradientDescent(0.1), problem, torch.zeros(1, 8))


def test_the_strong_convexity_is_the_ridge_to_the_bit():
    assert LinearClassifier(*pairs(1, 5, 2), classes=3, ridge=0.1).strong_convexity.item() == 0.1
