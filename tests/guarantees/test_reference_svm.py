import itertools
import math

import pytest
import torch
from torch.testing import assert_close

from lmd.errors import LmdError
from lmd.guarantees import minimiser, minimum, optimum, reference
from lmd.problems import SVM


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


def test_against_every_possible_set_of_support_vectors():
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
    found = optimum(SVM(features, labels, C))
    assert float(found.value) == pytest.approx(best, rel=1e-9)
    assert float(found.bound) == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("C", [1e-3, 1.0, 100.0])
@pytest.mark.parametrize("shape", [(200, 5), (60, 50), (20, 50)], ids=["overlapping", "square", "separable"])
def test_the_gap_is_closed_and_the_answer_is_that_of_libsvm(shape, C):
    from sklearn.svm import SVC

    features, labels = (tensor[0] for tensor in pairs(1, *shape))
    problem = SVM(features, labels, C)
    found = optimum(problem)
    assert -1e-14 <= float(found.gap) <= 1e-10 * float(found.value) and bool(found.attained)
    assert float(found.value) == pytest.approx(textbook(features, labels, C, found.x[0]), rel=1e-12)
    other = SVC(kernel="linear", C=C, tol=1e-8).fit(features.numpy(), labels.numpy())
    x = torch.cat([torch.tensor(other.coef_[0]), torch.tensor(other.intercept_)])
    theirs = float(problem.value(x[None]))
    assert theirs == pytest.approx(float(found.value), rel=1e-3) and theirs >= float(found.bound)


def test_unbalanced_classes_and_useless_features():
    features, labels = pairs(1, 40, 3)
    features, labels = torch.cat([features[0], torch.zeros(40, 1)], dim=1), torch.ones(40)
    labels[0] = -1
    found = optimum(SVM(features, labels))
    assert bool(found.gap <= 1e-10 * found.value) and float(found.x[0, 3]) == pytest.approx(0, abs=1e-12)


def test_giving_up_is_said(monkeypatch):
    monkeypatch.setattr(reference, "SVM_MAX_ITERATIONS", 2)
    features, labels = pairs(1, 30, 3)
    with pytest.raises(LmdError, match=r"^SVM: no certified optimum, the duality gap stays at"):
        minimum(SVM(features[0], labels[0]))


def test_it_is_solved_once_per_data_set(monkeypatch):
    features, labels = pairs(2, 30, 3, dtype=torch.float32)
    problem = SVM(features, labels, starts=4)
    solved, solve = [], reference.solve_svm
    monkeypatch.setattr(reference, "solve_svm", lambda problem: solved.append(int(problem.subset)) or solve(problem))
    found, x = minimum(problem), minimiser(problem)
    assert found.dtype == torch.float32 and x.shape == (8, 4)
    assert solved == [0, 1, 0, 1]
    assert_close(problem.value(x), found)
    assert torch.equal(minimum(problem.select(slice(3, 5))), found[3:5])
