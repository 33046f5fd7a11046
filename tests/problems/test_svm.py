import itertools
import math

import pytest
import torch
from torch.testing import assert_close

import lmd
from lmd.errors import InputError, LmdError
from lmd.problems.svm import SVM, SVMFamily
from lmd.problems.svm_optimum import certified, solve_svm


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
        assert problem.batch_size == 6 and problem.dimension == 5
        x = torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        expected = [textbook(features[i // 2], labels[i // 2], 0.7, x[i]) for i in range(6)]
        assert_close(problem.value(x), torch.tensor(expected, dtype=torch.float64))

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
        monkeypatch.setattr("lmd.problems.subsets.CHUNK", 70)  # two instances at a time
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


class TestOptimum:
    def test_against_every_possible_set_of_support_vectors(self):
        """Brute force: in the dual each pair is at 0, at C or free; the best of the 3^6 stationary points wins."""
        features, labels = (tensor[0] for tensor in pairs(1, 6, 2))
        signed = labels[:, None] * features
        C, best = 0.3, -math.inf
        for kinds in itertools.product((0, 1, 2), repeat=6):
            free = [i for i, kind in enumerate(kinds) if kind == 2]
            a = torch.tensor([C if kind == 1 else 0.0 for kind in kinds], dtype=torch.float64)
            # Stationarity on the free pairs and sum a_i y_i = 0, as one linear system.
            system = torch.zeros(len(free) + 1, len(free) + 1, dtype=torch.float64)
            system[:-1, :-1] = signed[free] @ signed[free].T
            system[:-1, -1] = system[-1, :-1] = labels[free].double()
            right = torch.cat([1 - signed[free] @ (a @ signed), -(a @ labels.double())[None]])
            a[free] = torch.linalg.lstsq(system, right, driver="gelsd").solution[:-1]
            if abs(a @ labels.double()) < 1e-9 and bool(((a >= -1e-12) & (a <= C + 1e-12)).all()):
                best = max(best, float(a.sum() - 0.5 * (a @ signed).square().sum()))
        optimum = SVM(features, labels, C).optima()[0]
        assert optimum.value == pytest.approx(best, rel=1e-9)
        assert optimum.bound == pytest.approx(best, rel=1e-9)

    @pytest.mark.parametrize("C", [1e-3, 1.0, 100.0])
    @pytest.mark.parametrize("shape", [(200, 5), (60, 50), (20, 50)], ids=["overlapping", "square", "separable"])
    def test_the_gap_is_closed_and_the_answer_is_that_of_libsvm(self, shape, C):
        from sklearn.svm import SVC

        features, labels = (tensor[0] for tensor in pairs(1, *shape))
        problem = SVM(features, labels, C)
        (optimum,) = problem.optima()
        assert -1e-14 <= optimum.gap <= 1e-10 * optimum.value and optimum.attained
        assert optimum.value == pytest.approx(textbook(features, labels, C, optimum.x), rel=1e-12)
        other = SVC(kernel="linear", C=C, tol=1e-8).fit(features.numpy(), labels.numpy())
        x = torch.cat([torch.tensor(other.coef_[0]), torch.tensor(other.intercept_)])
        theirs = float(problem.value(x[None]))
        assert theirs == pytest.approx(optimum.value, rel=1e-3) and theirs >= optimum.bound

    def test_unbalanced_classes_and_useless_features(self):
        features, labels = pairs(1, 40, 3)
        features, labels = torch.cat([features[0], torch.zeros(40, 1)], dim=1), torch.ones(40)
        labels[0] = -1
        (optimum,) = SVM(features, labels).optima()
        assert optimum.gap <= 1e-10 * optimum.value and float(optimum.x[3]) == pytest.approx(0, abs=1e-12)

    def test_a_bound_holds_wherever_it_is_computed(self):
        features, labels = pairs(1, 30, 3)
        problem = SVM(features[0], labels[0])
        rows, minimum = problem.rows[0], float(problem.minimum())
        generator = torch.Generator().manual_seed(0)
        for _ in range(20):
            x = torch.randn(4, dtype=torch.float64, generator=generator)
            a = 2 * torch.rand(30, dtype=torch.float64, generator=generator) - 0.3
            proven = certified(rows, 1.0, x, a)
            assert proven.bound <= minimum <= proven.value + 1e-12
            # The bias is the best one for these weights.
            near = torch.stack([torch.cat([x[:-1], proven.x[-1:] + shift]) for shift in torch.linspace(-3, 3, 101)])
            assert proven.value <= float(SVM(features[0], labels[0], starts=101).value(near).min()) + 1e-12

    def test_it_is_solved_once_per_data_set_and_shared_with_parts(self, monkeypatch):
        features, labels = pairs(2, 30, 3, dtype=torch.float32)
        problem = SVM(features, labels, starts=4)
        solved = []
        solve = problem.solve
        monkeypatch.setattr(problem, "solve", lambda data_set: solved.append(data_set) or solve(data_set))
        minimum, minimiser = problem.minimum(), problem.minimiser()
        assert minimum.dtype == torch.float32 and minimiser.shape == (8, 4)
        assert sorted(solved) == [0, 1]
        assert_close(problem.value(minimiser), minimum)
        assert torch.equal(problem.select(slice(3, 5)).minimum(), minimum[3:5]) and len(solved) == 2

    def test_giving_up_is_said(self, monkeypatch):
        monkeypatch.setattr("lmd.problems.svm_optimum.ITERATIONS", 2)
        features, labels = pairs(1, 30, 3)
        with pytest.raises(LmdError, match=r"^SVM: no certified optimum, the duality gap stays at"):
            solve_svm(SVM(features[0], labels[0]).rows[0], 1.0)


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
    with pytest.raises(InputError, match=r"^x0: got shape \(2, 1\), expected shape \(B, 2\) to go with features"):
        lmd.run(solver, problem, torch.zeros(2, 1))
    with pytest.raises(InputError, match=r"^x0: got torch.float64, expected torch.float32, the dtype of the features"):
        lmd.run(solver, problem, torch.zeros(2, 2).double())
    with pytest.raises(InputError, match=r"^x0: got shape \(3, 2\), expected 2 instances"):
        lmd.run(solver, problem, torch.zeros(3, 2))
    with pytest.raises(InputError, match=r"^x: got shape \(3, 2\), expected shape \(2, 2\), as the problem has"):
        problem.value(torch.zeros(3, 2))
