"""The reference of the site: every argument of every public name is described, and the pages show it."""

import enum
import importlib.util
import inspect
import sys
from pathlib import Path

import click
import pytest

import lmd
from lmd.cli.program import COMMANDS, cli

PATH = Path(__file__).parents[1] / "docs" / "_ext" / "reference.py"
OPEN = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
MADE_UP = '''
from dataclasses import dataclass

@dataclass
class Fields:
    """Three of them."""

    first: int
    """What it is, in
    two lines."""

    second: int = 2
    third: int = 3
    """The last."""

class Inherits(Fields):
    """Says more.

    Args:
        second, fourth: These are described
            together.
        *others: All that come after.

    Returns:
        x_1 * x_2 of the *two*.

    >>> 1 < 2
    True
    """

    def __init__(self, first, second, third=3, fourth="f", fifth=5, *others):
        pass
'''


def loaded(name: str, path: Path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


reference = loaded("docs_reference", PATH)


@pytest.fixture
def made_up(tmp_path):
    (tmp_path / "made_up.py").write_text(MADE_UP)
    yield loaded("lmd.made_up", tmp_path / "made_up.py")
    del sys.modules["lmd.made_up"]
    reference.fields.cache_clear()


def missing(item) -> list[str]:
    """The arguments that nothing is said about; enumerations are not called for a member."""
    if inspect.isclass(item) and issubclass(item, enum.Enum):
        return []
    said = reference.described(item)
    return [each.name for each in reference.parameters(item) if each.kind not in OPEN and not said.get(each.name)]


@pytest.mark.parametrize("room", ["", *reference.ROOMS])
def test_every_argument_of_every_public_name_is_described(room):
    module = importlib.import_module(f"lmd.{room}" if room else "lmd")
    items = {name: getattr(module, name) for name in reference.public(module)}
    found = {name: missing(item) for name, item in items.items() if callable(item)}
    assert found
    assert {name: arguments for name, arguments in found.items() if arguments} == {}


def test_an_argument_that_nothing_is_said_about_is_found(made_up):
    assert missing(made_up.Fields) == ["second"]
    assert missing(made_up.Inherits) == ["fifth"]
    assert missing(lambda x: x) == ["x"]


def test_arguments_are_a_list_with_defaults_before_the_examples(made_up):
    text = "\n".join(reference.entry("Inherits", made_up.Inherits))
    listed = "- `first`: What it is, in two lines.\n- `second`: These are described together.\n- `third = 3`: The last."
    assert listed in text
    assert "- `fourth = 'f'`: These are described together.\n- `others`: All that come after." in text
    assert (
        text.index("- `others`")
        < text.index(r"Returns: x\_1 \* x\_2 of the *two*.")
        < text.index("```pycon\n>>> 1 < 2")
    )


def test_the_settings_of_a_training_are_with_the_function():
    text = "\n".join(reference.entry("train", lmd.train))
    assert "- `resume = False`: " in text and "- `learning_rate = 0.001`: Adam's learning rate" in text


def test_every_command_and_option_is_on_the_page():
    text = "\n".join(reference.commands(cli, click.Context(cli, info_name="lmd")))
    assert all(f"## lmd {name}\n" in text for name in (*COMMANDS, "data fetch", "solve denoise"))
    assert "- `--resume`: Continue the run in OUT." in text


def test_what_needs_other_packages_is_read_and_not_imported():
    pages = {title: reference.source_page(title, modules) for title, modules in reference.UNIMPORTED.items()}
    assert "TVPrior(tolerance: float=0.0001)" in pages["deepinv"]
    for name in ("Term", "Operator", "Mirror", "Solver"):
        assert f"### {name}Conformance\n" in pages["conformance"]
