import importlib
import json
import pkgutil
import subprocess
import sys

import pytest

import lmd
from lmd.core.config import HOMES, Configurable, from_config, to_config
from lmd.errors import InputError
from lmd.mirrors import EuclideanBox, Quadratic
from lmd.solvers import Adam, BestSoFar, GradientDescent, LearnedMirrorDescent, MirrorDescent
from lmd.solvers.steps import FixedSteps


def there_and_back(item):
    return from_config(json.loads(json.dumps(to_config(item))))


@pytest.mark.parametrize(
    "item",
    [
        EuclideanBox(-1, 2),
        Quadratic(3, floor=0.1),
        FixedSteps(0.5, 1.0),
        GradientDescent(0.1),
        Adam(FixedSteps(0.5, 0.5)),
        MirrorDescent(Quadratic(2), 0.3),
        LearnedMirrorDescent(EuclideanBox(), iterations=4, initial_step=0.2, interval=(0.1, 0.3), extension="decay"),
        BestSoFar(BestSoFar(GradientDescent(0.2))),
    ],
    ids=lambda item: type(item).__name__,
)
def test_written_down_and_built_again(item):
    again = there_and_back(item)
    assert type(again) is type(item)
    assert to_config(again) == to_config(item)


def test_what_is_written_down():
    assert to_config(MirrorDescent(EuclideanBox(0, 2), FixedSteps(0.1, 1))) == {
        "type": "MirrorDescent",
        "mirror": {"type": "EuclideanBox", "low": 0.0, "high": 2.0},
        "steps": {"type": "FixedSteps", "size": 0.1, "power": 1.0},
    }


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (None, "configuration: got NoneType None, expected an object with a"),
        ([1], "configuration: got list [1]"),
        ({}, "configuration: got dict {}"),
        ({"type": 3}, "configuration: got dict"),
        ({"type": "os.system", "command": "true"}, "configuration type: got 'os.system'"),
        ({"type": "FixedSteps", "sise": 1}, "configuration of FixedSteps: got "),
        ({"type": "FixedSteps"}, "configuration of FixedSteps: got "),
        ({"type": "FixedSteps", "size": -1}, "size: got -1, expected a positive number"),
        ({"type": "Solver"}, "configuration of Solver: got "),
        ({"type": "OneLayer", "dimension": 2, "alpha": "a"}, "configuration of OneLayer: got "),
        ({"type": "MirrorDescent", "mirror": {"type": "FixedSteps", "size": 1}}, "mirror: got FixedSteps"),
        ({"type": "MirrorDescent", "mirror": "Euclidean"}, "mirror: got str"),
        ({"type": "BestSoFar", "solver": {"type": "Euclidean"}}, "solver: got Euclidean"),
        ({"type": "GradientDescent", "steps": {"type": "Euclidean"}}, "steps: got Euclidean"),
    ],
)
def test_what_cannot_be_built_is_refused_in_one_line(config, words):
    with pytest.raises(InputError) as caught:
        from_config(config)
    assert str(caught.value).startswith(words) and "\n" not in str(caught.value)


def test_a_class_of_your_own_is_known_once_it_is_defined():
    class Mine(Configurable):
        def __init__(self, size=1):
            self.size = size

        def config(self):
            return {"size": self.size}

    assert there_and_back(Mine(size=3)).size == 3


def test_a_class_of_your_own_can_be_defined_again_as_in_a_notebook():
    def define(answer):
        class Again(Configurable):
            value = answer

        return Again

    define(1)
    assert there_and_back(define(2)()).value == 2


def test_a_name_of_lmd_cannot_be_taken_over():
    with pytest.raises(InputError, match=r"class: got FixedSteps, .*lmd\.solvers\.steps"):
        type("FixedSteps", (Configurable,), {"__module__": "elsewhere"})
    assert there_and_back(GradientDescent(0.1)).steps.size == 0.1


@pytest.mark.parametrize("load", ["lmd.zoo.load", "lmd.solvers.load"])
def test_a_guarded_solver_loads_in_a_new_process(tmp_path, load):
    inner = lmd.guarantees.DescentSafeguard(LearnedMirrorDescent(Quadratic(2), iterations=3))
    folder = lmd.solvers.save(lmd.guarantees.Safeguard(inner, delay=2), tmp_path / "guarded")
    code = f"import lmd; solver = {load}({str(folder)!r}); print(type(solver).__name__, type(solver.solver).__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["Safeguard", "DescentSafeguard"]


def test_every_configurable_of_lmd_is_found_by_its_name():
    for module in pkgutil.walk_packages(lmd.__path__, "lmd."):
        if "._" not in module.name and module.name != "lmd.compat.deepinv":  # compiled kernels; an extra
            importlib.import_module(module.name)
    modules = {name: kind.__module__ for name, kind in Configurable.registry.items()}
    own = {name for name, module in modules.items() if module.startswith("lmd.") and not module.startswith("lmd.tv.")}
    code = f"import {', '.join(HOMES)}; from lmd.core.config import Configurable; print(*Configurable.registry)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert own <= set(done.stdout.split())


def test_a_name_that_a_file_gives_is_never_imported(tmp_path, monkeypatch):
    (tmp_path / "trap.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("trap", "trap.Solver", "lmd.guarantees.Safeguard"):
        with pytest.raises(InputError, match="configuration type"):
            from_config({"type": name})
