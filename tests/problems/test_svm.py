import math

import pytest
import torch
from torch.testing import assert_close

import lmd
from lmd.errors import InputError
from lmd.problems.classifiers import SVM, SVMFamily


def pairs(sets, count, width, seed=0, dtype=torch.float64):
    """Data sets of overlapping classes."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.ones(sets, count, dtype=torch.int64)
    labels[:, ::2] = -1
    noise = torch.randn(sets, count, width, dtype=dtype, generator=generator)
    return noise + 0.5 * labels[..., None], labels


def textbook(features, labels, C, x):
    """The formula of the paper, pair by pair."""
    w, b = x[:-1], x[-1]
    hinges = sum(max(0.0, 1 - float(y * (w @ phi + b))) for phi, y in zip(features, labels, strict=True))
    return 0.5 * float(w @ w) + C * hinges


class TestValueAndSubgradient:
    def test_by_hand(self):
        problem = SVM(torch.tensor([[2.0], [-1.0]]), torch.tensor([1, -1]), C=3.0, starts=2)
        x = torch.tensor([[1.0, 0.5], [0.0, 0.0]])
        # Margins 2.5 and 0.5 at the first point, so only the second pair is active there.
        assert_close(problem.value(x), torch.tensor([0.5 + 3 * 0.5, 6.0]))
        assert_close(problem.subgradient(x), torch.tensor([[1 - 3 * 1.0, 3.0], [-3 * 3.0, 0.0]]))
        assert_close(problem.accuracy(x), torch.tensor([1.0, 0.0]))

    def test_each_instance_has_its_own_data_set(self):
        features, labels = pairs(3, 20, 4)
        problem = SVM(features, labels, C=0.7, starts=2)
        assert problem.batch_size == 6 and problem.point_shape == (5,)
        x = torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        expected = [textbook(features[i // 2], labels[i // 2], 0.7, x[i]) for i in range(6)]
        assert_close(problem.value(x), torch.tensor(expected, dtype=torch.float64))

    def test_one_instance_for_each_data_set_in_any_order(self):
        features, labels = pairs(3, 20, 4)
        problem, order = SVM(features, labels, C=0.7), torch.tensor([2, 0, 1])
        x = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        expected = torch.tensor([textbook(features[i], labels[i], 0.7, x[i]) for i in range(3)], dtype=torch.float64)
        assert_close(problem.value(x), expected)
        assert_close(problem.select(order).value(x[order]), expected[order])
        with pytest.raises(InputError, match=r"x: got shape \(1, 5\)"):
            problem.value(x[:1])

    def test_the_derivatives_are_those_of_autograd(self):
        features, labels = pairs(2, 30, 4)
        problem = SVM(features, labels, starts=3)
        x = torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).requires_grad_()
        signed = labels[:, None, :] * (x.reshape(2, 3, 5)[..., :-1] @ features.mT + x.reshape(2, 3, 5)[..., -1:])
        plain = 0.5 * x[:, :-1].square().sum(dim=1) + (1 - signed).clamp(min=0).sum(dim=2).flatten()
        (expected,) = torch.autograd.grad(plain.sum(), x)
        assert_close(problem.subgradient(x), expected)
        (by_value,) = torch.autograd.grad(problem.value(x).sum(), x)
        assert_close(by_value, expected)
        values, subgradients = problem.value_and_subgradient(x)
        assert_close(values, plain)
        assert_close(subgradients, expected)
        with torch.no_grad():
            values, subgradients = problem.value_and_subgradient(x)
        assert_close(values, plain.detach())
        assert_close(subgradients, expected)

    def test_training_can_differentiate_through_a_subgradient(self):
        features, labels = pairs(1, 30, 4)
        problem = SVM(features[0], labels[0], starts=3)
        x = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).requires_grad_()
        assert torch.autograd.gradcheck(problem.subgradient, x)
        assert torch.autograd.gradcheck(problem.value, x)
        assert torch.autograd.gradgradcheck(problem.value, x)

    def test_chunks_and_parts_change_nothing(self, monkeypatch):
        features, labels = pairs(2, 30, 4)
        problem = SVM(features, labels, starts=5)
        x = torch.randn(10, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
        values, subgradients = problem.value_and_subgradient(x)
        monkeypatch.setattr("lmd.problems.classifiers.MAX_SCORES", 70)  # two instances at a time
        assert_close(problem.value(x), values)
        assert_close(problem.subgradient(x), subgradients)
        mixed = torch.tensor([7, 0, 9, 1])
        part = problem.select(mixed)
        assert part.batch_size == 4
        assert_close(part.value(x[mixed]), values[mixed])
        assert_close(part.subgradient(x[mixed]), subgradients[mixed])
        assert_close(part.accuracy(x[mixed]), problem.accuracy(x)[mixed])

    def test_a_batch_of_starts_needs_no_more_memory_than_a_few_of_its_chunks(self, monkeypatch):
        seen = []
        problem = SVM(*(tensor[0] for tensor in pairs(1, 1000, 50, dtype=torch.float32)), starts=2000)
        evaluate = problem.evaluate
        monkeypatch.setattr(problem, "evaluate", lambda *a, **k: seen.append(len(a[1])) or evaluate(*a, **k))
        problem.value_and_subgradient(torch.zeros(2000, 51))
        assert sum(seen) == 2000 and max(seen) * 1000 <= 2**18


class TestFamily:
    def family(self, **arguments):
        generator = torch.Generator().manual_seed(0)
        features = torch.randn(300, 5, generator=generator)
        return SVMFamily(features, torch.arange(300) % 10, **{"subset": 20, **arguments})

    def test_a_sample_is_one_subset_of_two_classes_with_normal_starts(self):
        family = self.family()
        problem, x0 = family.sample(4000, torch.Generator().manual_seed(1))
        assert problem.features.shape == (1, 20, 5) and problem.batch_size == 4000
        assert x0.shape == (4000, 6) and x0.dtype == torch.float32
        assert abs(float(x0.mean())) < 0.02 and abs(float(x0.std()) - 1) < 0.02
        position = {tuple(row.tolist()): i for i, row in enumerate(family.features)}
        drawn = [position[tuple(row.tolist())] for row in problem.features[0]]
        assert len(set(drawn)) == 20
        # Of the pairs of 4 and 9, which alternate, the 4s are -1.
        assert problem.labels[0].tolist() == [-1 if i % 2 == 0 else 1 for i in drawn]

    def test_several_subsets_share_the_starts(self):
        problem, x0 = self.family(subsets=3, C=2.0).sample(6, torch.Generator().manual_seed(1))
        assert problem.subset.tolist() == [0, 0, 1, 1, 2, 2] and problem.C == 2.0
        assert not torch.equal(problem.features[0], problem.features[1])
        assert lmd.run(lmd.solvers.GradientDescent(0.01), problem, x0, 3).x.shape == (6, 6)

    def test_the_generator_decides(self):
        samples = [self.family().sample(3, torch.Generator().manual_seed(seed)) for seed in (5, 5, 6)]
        assert torch.equal(samples[0][0].features, samples[1][0].features) and torch.equal(samples[0][1], samples[1][1])
        assert not torch.equal(samples[0][0].features, samples[2][0].features)

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ({"classes": (4, 4)}, r"classes: got \(4, 4\), expected two different classes"),
            ({"classes": (4, 5, 6)}, r"classes: got \(4, 5, 6\), expected two different classes"),
            (
                {"classes": (4, 17)},
                r"labels: got no pair of class 17 among 0, 1, 2, .* expected both classes \(4, 17\)",
            ),
            ({"subset": 61}, "subset: got 61, expected at most 60, as many pairs as there are"),
            ({"subset": 0}, "subset: got 0, expected a whole number of 1 or more"),
            ({"subsets": 0}, "subsets: got 0"),
            ({"C": -1.0}, "C: got -1.0, expected a positive number"),
        ],
    )
    def test_bad_arguments(self, arguments, words):
        with pytest.raises(InputError, match="^" + words):
            self.family(**arguments)

    def test_a_batch_that_cannot_be_shared_evenly(self):
        with pytest.raises(InputError, match=r"^batch: got 7, expected a multiple of 3"):
            self.family(subsets=3).sample(7, torch.Generator())


@pytest.mark.parametrize(
    ("features", "labels", "words"),
    [
        (torch.ones(3, 2), torch.tensor([4, 9, 4]), "labels: got the values 4, 9, expected two classes, -1 and 1"),
        (torch.ones(3, 2), torch.tensor([-1, 0, 1]), "labels: got the values -1, 0, 1, expected two classes"),
        (torch.ones(3, 2), torch.tensor([1, 1, 1]), "labels: got the values 1, expected two classes"),
        (torch.ones(0, 2), torch.ones(0), r"features: got shape \(0, 2\), an empty subset, expected at least one pair"),
        (torch.ones(3, 2), torch.ones(4), r"labels: got shape \(4,\), expected shape \(3,\): one per feature"),
        (torch.ones(3), torch.ones(3), r"features: got shape \(3,\), expected shape \(m, d\)"),
        (torch.ones(3, 2), [1, -1, 1], "labels: got list"),
        (torch.ones(3, 2).long(), torch.ones(3), "features: got torch.int64"),
        (torch.tensor([[math.nan], [1.0]]), torch.tensor([1, -1]), "features: got 1 non-finite entries"),
    ],
)
def test_bad_data(features, labels, words):
    with pytest.raises(InputError, match="^" + words):
        SVM(features, labels)


def test_bad_starts_and_points():
    problem = SVM(torch.tensor([[2.0], [-1.0]]), torch.tensor([1, -1]), starts=2)
    solver = lmd.solvers.GradientDescent(0.1)
    with pytest.raises(InputError, match=r"^x0: got shape \(2, 1\), expected shape \(2, 2\)"):
        lmd.run(solver, problem, torch.zeros(2, 1))
    with pytest.raises(InputError, match=r"^x0: got torch.float64, expected torch.float32, the dtype of the features"):
        lmd.run(solver, problem, torch.zeros(2, 2).double())
    with pytest.raises(InputError, match=r"^x0: got shape \(3, 2\), expected 2 instances"):
        lmd.run(solver, problem, torch.zeros(3, 2))
    with pytest.raises(InputError, match=r"^x: got shape \(3, 2\), expected shape \(2, 2\), as the problem has"):
        problem.value(torch.zeros(3, 2))
