"""The tasks: everything that is registered fits together, and what another package brings is known or named."""

import sys
import warnings
from importlib.metadata import EntryPoint
from types import ModuleType

import pytest
import torch

from lmd import zoo
from lmd.errors import CapabilityError, InputError
from lmd.operators import Differences
from lmd.problems import Composite, LeastSquares, TVDenoising, TVInpaintingFamily
from lmd.problems.base import FunctionProblem
from lmd.reproduction import recipes, tasks
from lmd.reproduction.tasks import CertifiedBy, Drawn
from lmd.reproduction.tasks.denoise import EXACT
from lmd.reproduction.tasks.task import Digits, HeldOut, Images, Task, gap_scale, minimum, optimum
from lmd.reproduction.tasks.vectors import LASSO
from lmd.terms import L1, Squares


@pytest.fixture
def registered(monkeypatch):
    """A function that registers entry points, forgotten after the test."""

    def register(*entries):
        found = [EntryPoint(name, value, "lmd.tasks") for name, value in entries]
        monkeypatch.setattr(tasks, "entry_points", lambda group: found)
        tasks._register.cache_clear()

    yield register
    tasks._register.cache_clear()


def test_a_name_that_is_none():
    with pytest.raises(InputError, match=r"^task: got 'denoize', expected one of .*did you mean denoise"):
        tasks.get("denoize")


def test_a_task_of_another_package_is_known(registered):
    registered(("mine", "tests_own_task:TASK"))
    module = ModuleType("tests_own_task")
    module.TASK = Task(name="mine", title="mine", recipes=LASSO.recipes)
    sys.modules["tests_own_task"] = module
    try:
        assert tasks.names()[-1] == "mine" and "mine-10" in recipes.names()
        assert "mine-10" not in zoo.names() and recipes.task_of("mine-10") is module.TASK
    finally:
        del sys.modules["tests_own_task"]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("no_such_package:TASK", "No module named 'no_such_package'"),
        ("lmd.reproduction.tasks.vectors:NOTHING", "has no attribute 'NOTHING'"),
        ("lmd.reproduction.tasks.vectors:make_lasso", "function, which is no lmd.reproduction.tasks.Task"),
        ("lmd.reproduction.tasks.vectors:LASSO", "a second task of the name lasso"),
    ],
)
def test_a_broken_one_is_named_in_one_line_and_the_others_stay(registered, value, said):
    registered(("broken", value))
    with pytest.warns(UserWarning, match=f"^task broken of {value} left out: .*{said}") as caught:
        assert "denoise" in tasks.names()
    assert len(caught) == 1 and "\n" not in str(caught[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is said once
        assert "broken" not in tasks.names()


class TestHeldOut:
    def test_images_are_others_in_pieces_of_the_asked_size(self):
        trained = TVInpaintingFamily(torch.rand(3, 3, 40, 40), crop=20, weight=0.2, kept=0.5, halved=True)
        images = (torch.rand(3, 32, 24), torch.rand(3, 40, 40))
        other = Images().held_out(trained, HeldOut("quick", side=32, images=images, dtype=torch.float64))
        assert (other.kept, other.weight, other.halved, other.crop) == ((0.5, 0.5), (0.2, 0.2), True, 24)
        assert other.dtype == torch.float64 and len(other.images) == 2
        assert len(trained.images) == 3 and trained.crop == 20 and trained.dtype == torch.float32
        assert Images(whole=True).held_out(trained, HeldOut("quick", side=32, images=images)).crop == 20

    def test_features_are_of_the_test_fold(self):
        for task in (tasks.get("svm"), tasks.get("linear-classifier")):
            (source,) = {recipe.source for recipe in task.recipes}
            assert isinstance(source, Digits)
            trained = task.recipes[0].family("quick")
            other = source.held_out(trained, HeldOut("quick", subsets=3, dtype=torch.float64))
            assert type(other) is type(trained) and other.subset == trained.subset and other.subsets == 3
            assert other.features.dtype == torch.float64
            assert not bool((other.features[:5, None].float() == trained.features[None]).all(dim=2).any())

    def test_what_is_drawn_keeps_its_arrays(self):
        (recipe,) = tasks.get("lasso").recipes
        family, source = recipe.family("quick"), recipe.source
        other = source.held_out(family, HeldOut("quick", dtype=torch.float64))
        assert torch.equal(other.A, family.inside.A.double()) and family.inside.A.dtype == torch.float32
        changed = other.A.clone()
        changed[0, 0] += 1

        def fingerprint(family, source=source):
            return source.fingerprint(lambda preset: family, "quick")

        prints = {fingerprint(family), fingerprint(other)}
        other.A = changed
        assert fingerprint(other) not in prints and len(prints) == 2
        assert fingerprint(family, Drawn("nothing in common")) != fingerprint(family)


class TestOptima:
    def test_a_problem_of_parts_is_certified_and_remembered(self, monkeypatch, tmp_path):
        monkeypatch.setenv("LMD_CACHE", str(tmp_path))
        y = torch.rand(2, 12, generator=torch.Generator().manual_seed(0))
        found = optimum(Composite(Squares(y), (L1(0.3), Differences((12,))), start=y))
        assert bool((found.bound <= found.value).all() & (found.value <= found.bound * (1 + 2e-6)).all())
        assert len(list((tmp_path / "optima").iterdir())) == 2

    def test_what_is_not_known_is_said(self):
        with pytest.raises(CapabilityError, match=r"^problem: got FunctionProblem, which no reference method is for"):
            minimum(FunctionProblem(lambda x: x.square().sum(dim=1)))

    def test_gaps_are_divided_by_the_value_at_zero_where_the_minimum_is_nothing(self):
        problem = LeastSquares(torch.eye(2), torch.tensor([[3.0, 4.0], [3.0, 4.0]]))
        scale = gap_scale(problem, torch.tensor([0.0, 7.0]), torch.ones(2, 2))
        assert scale.tolist() == [25.0, 7.0]

    def test_certified_by(self):
        task = tasks.get("denoise")
        problem = TVDenoising(torch.rand(1, 1, 6, 6, generator=torch.Generator().manual_seed(0)).double(), 0.3)
        values, x = task.reference(problem, problem.start())
        assert x is not None and torch.equal(problem.value(x), values)
        assert CertifiedBy(EXACT, 1e-3)(problem, problem.start())[1] is None
