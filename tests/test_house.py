"""`make house` counts what is there: checked on a package that is made up for it, and on this one."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

PATH = Path(__file__).parents[1] / "benchmarks" / "house.py"

FILES = {
    "reproduction/__init__.py": "# one line\n",
    "operators/__init__.py": "class Blur: ...\n",
    "tv/__init__.py": "a = type(b).__name__ == 'Blur'\n",
    "tv/tv.c": "int f(void) {\n    return 1;\n}\n",
    "upper/match.py": (
        "a = b == 'Blur'\n"
        "c = 'lengths' in d.parts or d.data == 'squares'\n"
        "e = {('squares', 'boxed Blur'): 1}.get(f), ('differences', 'weight')\n"
        "def g(h):\n    match h:\n        case 'Blur': ...\n"
    ),
    "cli.py": "import toy.upper\n",
    "copies.py": "from toy.errors import Wrong\n",
    "errors.py": "class Wrong(Exception): ...\n",
    "lower/__init__.py": "__all__ = ['Problem', '__version__', 'Solver']\n",
    "lower/base.py": "from toy.errors import Wrong\n\nclass Problem: ...\n\nclass Solver: ...\n\ndef same(): ...\n",
    "lower/tv.py": (
        "from .base import Problem\n"
        "from toy.upper import Helper\n\n"
        "class TV(Problem[int]): ...\n\n"
        "class Isotropic(tv.TV): ...\n\n"
        "class _Same:\n    class Isotropic: ...\n\n"
        "def _private(): ...\n"
    ),
    "upper/__init__.py": (
        "from toy.lower.base import Problem, Solver\n"
        "import toy.lower.tv\n\n"
        "class Helper: ...\n\n"
        "def same(x, y, z):\n"
        "    import json\n"
        "    assert isinstance(x, Problem)\n"
        "    assert y is not None and z > 0\n"
        "    assert z > 1\n"
        "    if isinstance(x, (Helper, Isotropic)) or isinstance(y, str):\n"
        "        return x.y  # type: ignore[attr-defined]\n"
        '    return "# type: ignore"\n\n'
        "def long():\n" + "    pass\n" * 60
    ),
}


@pytest.fixture(scope="module")
def house():
    spec = importlib.util.spec_from_file_location("house", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules["house"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["house"]


@pytest.fixture
def toy(house, tmp_path):
    for name, text in FILES.items():
        (tmp_path / "toy" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "toy" / name).write_text(text)
    return house.House(tmp_path / "toy", house.documented_order("| `lower/` | what |\n| `upper/` | why |\n"))


def places(found):
    return [(each.place, each.what) for each in found]


def test_rooms_and_imports(toy):
    assert toy.rooms == ["copies", "errors", "lower", "upper", "operators", "reproduction", "tv", "cli"]
    assert toy.lines == sum(len(text.splitlines()) for name, text in FILES.items() if name.endswith(".py"))
    assert places(toy.imports()) == [
        ("cli.py:1", "upper"),
        ("copies.py:1", "errors"),
        ("lower/base.py:1", "errors"),
        ("lower/tv.py:2", "upper"),
        ("upper/__init__.py:1", "lower"),
        ("upper/__init__.py:2", "lower"),
    ]
    assert places(toy.upwards()) == [("lower/tv.py:2", "upper")]
    assert toy.shared() == {"same": ["lower/base.py", "upper/__init__.py"]}


def test_questions_asserts_and_silence(toy):
    assert toy.concrete() == {"TV", "Isotropic"}
    assert places(toy.asked_for_class()) == [("upper/__init__.py:11", "Isotropic")]
    assert [each.place for each in toy.narrowing()] == ["upper/__init__.py:8", "upper/__init__.py:9"]
    assert [each.place for each in toy.ignored()] == ["upper/__init__.py:12"]
    assert places(toy.lazy()) == [("upper/__init__.py:7", "import json")]


def test_functions_by_length(house, toy):
    longest = toy.functions()[0]
    assert (longest.what, longest.size, longest.place) == ("long", 61, "upper/__init__.py:15")
    assert "\n    61  long  upper/__init__.py:15\n" in "\n".join(house.report(toy))


def test_limits(house, toy, capsys):
    counts = {limit.what: (limit.count, limit.most) for limit in toy.limits()}
    assert counts["functions over 60 lines"] == (1, 0)
    assert counts["imports upwards"] == (1, 0)
    assert counts["exported names"] == (2, 170)
    assert counts["lines of Python in reproduction/"] == (1, 8000)
    assert counts["lines of Python in the library"] == (toy.lines - 1, 24000)
    assert counts["lines of C"] == (3, 3800)
    assert house.main(["--limits", str(toy.package)]) == 1
    printed = capsys.readouterr().out
    assert "1 over\n      lower/tv.py:2 (upper)" in printed and "longest" not in printed


def test_names_of_parts_that_are_compared(toy):
    assert places(toy.compared_parts()) == [
        ("upper/match.py:1", "Blur"),
        ("upper/match.py:2", "lengths"),
        ("upper/match.py:3", "squares, boxed Blur"),
        ("upper/match.py:6", "Blur"),
    ]


def test_it_reads_this_package_with_nothing_installed():
    call = [sys.executable, "-I", "-S", str(PATH)]
    ended = subprocess.run(call, capture_output=True, text=True)
    assert ended.returncode in (0, 1) and ended.stderr == ""
    assert re.search(r"imports upwards +0 of at most +0\n", ended.stdout) and "\nsolvers " in ended.stdout
