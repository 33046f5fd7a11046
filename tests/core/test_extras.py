"""The core is light: what it needs, what it imports, and what is said where an extra is missing."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lmd.core import extras
from lmd.errors import LmdError
from lmd.imaging.image_files import read_header
from lmd.problems import from_cvxpy

ROOT = Path(__file__).parents[2]
NAMES = {"PIL": "pillow", "skimage": "scikit-image", "sklearn": "scikit-learn"}
CORE = ["click", "numpy", "platformdirs", "rich", "safetensors", "torch", "typing-extensions"]


def listed(name: str) -> list[str]:
    """The packages in a list of pyproject.toml."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(rf"^{name} = \[(.*?)\](?: #[^\n]*)?$", text, flags=re.MULTILINE | re.DOTALL)
    assert found is not None
    return [word for word in re.findall(r'"([\w-]+)[>\[]', found[1]) if word != "lmd"]


def test_the_core_needs_no_more() -> None:
    assert listed("dependencies") == CORE


@pytest.mark.parametrize("extra", extras.EXTRAS)
def test_the_extras_are_those_of_the_package(extra: str) -> None:
    assert sorted(listed(extra)) == sorted(NAMES.get(module, module) for module in extras.EXTRAS[extra])


def test_arrays_are_solved_without_any_extra() -> None:
    absent = sorted({module for modules in extras.EXTRAS.values() for module in modules})
    code = f"""
import sys
for name in {absent}: sys.modules[name] = None
import numpy as np, lmd, torch
y = np.random.default_rng(0).random((20, 20))
assert lmd.denoise(y).shape == lmd.inpaint(y, y > 0.1, weight=0.1).shape == (20, 20)
lmd.solve(lmd.problems.Lasso(torch.eye(4), torch.ones(1, 4), 0.1), tolerance=1e-3)
from lmd.cli.program import main
main(["info"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "pip install 'lmd[pictures]'" in done.stdout


@pytest.fixture(autouse=True)
def nothing_is_known() -> None:
    """No library was found before."""
    extras.require.cache_clear()


def test_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "PIL" else found(name))
    (tmp_path / "a.png").write_bytes(b"x")
    with pytest.raises(LmdError, match=r"^PIL is not installed: pip install 'lmd\[pictures\]'$"):
        read_header(tmp_path / "a.png")
    with pytest.raises(ImportError, match="PIL is not installed"):
        extras.require("torch", "PIL")


def test_no_extra_for_users_is_left_out() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    section = text.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    assert set(re.findall(r"^(\w+) = \[", section, flags=re.MULTILINE)) == {*extras.EXTRAS, "all", "docs", "test"}


def test_cvxpy_comes_with_an_extra_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(LmdError, match=r"^cvxpy is not installed: pip install 'lmd\[cvxpy\]'$"):
        from_cvxpy(object(), {})
