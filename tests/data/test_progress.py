import sys

import pytest

from lmd.data import progress
from lmd.data.progress import LateBar


@pytest.fixture
def shown(monkeypatch, capsys):
    """Runs a bar of three steps to its end and returns what was written to stderr."""

    def run(terminal, patience):
        monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
        monkeypatch.setattr(progress, "PATIENCE", patience)
        with LateBar("counting sheep", total=3) as bar:
            for _ in range(3):
                bar.update(1)
        written = capsys.readouterr()
        assert written.out == ""
        return written.err

    return run


def test_a_bar_appears_on_a_terminal_once_it_takes_long(shown):
    text = shown(terminal=True, patience=-1)
    assert "counting sheep" in text and "100%" in text


def test_there_is_none_for_what_is_quick_or_seen_by_nobody(shown):
    assert shown(terminal=True, patience=1000) == ""
    assert shown(terminal=False, patience=-1) == ""
