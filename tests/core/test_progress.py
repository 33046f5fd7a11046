"""The progress bar, on a pseudo-terminal as a user sees it."""

import os
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from lmd.core import progress
from lmd.core.progress import ProgressBar


class Terminal:
    """A pseudo-terminal as stderr, and what was written to it until it was closed."""

    def __init__(self) -> None:
        self._master, slave = os.openpty()
        self.stream = os.fdopen(slave, "w")
        self._read = bytearray()
        self._reader = threading.Thread(target=self._collect)
        self._reader.start()

    def _collect(self) -> None:
        try:
            while piece := os.read(self._master, 4096):
                self._read += piece
        except OSError:  # how Linux says that the other end is closed
            pass

    def text(self) -> str:
        self.stream.close()
        self._reader.join()
        return self._read.decode()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Terminal]]:
    """Makes stderr a terminal when it is called; pytest gives every phase of a test a stderr of its own."""
    made: list[Terminal] = []

    def make() -> Terminal:
        made.append(Terminal())
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr(sys, "stderr", made[0].stream)
        return made[0]

    yield make
    made[0].text()


def wait_for(bar: ProgressBar) -> None:
    for _ in range(1000):
        if bar._bar is not None:
            return
        threading.Event().wait(0.002)
    raise AssertionError("the bar did not appear")


def test_a_bar_appears_by_itself_and_counts_what_is_done(terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    screen = terminal()
    with ProgressBar("counting sheep", total=4) as bar:
        wait_for(bar)  # nothing is done yet, and there is a bar
        bar._bar.refresh()
        bar.update(1)
        bar._bar.refresh()
        with bar.hidden():
            print("a line", file=sys.stderr)
    text = screen.text()
    before, _, after = text.partition("25%")
    assert "counting sheep" in before and "0%" not in before and after
    assert "\x1b[2Ka line" in text.replace("\r", ""), "a line is printed where the bar was, not behind it"


def test_there_is_none_for_what_is_quick(terminal) -> None:
    screen = terminal()
    with ProgressBar("counting sheep", total=1) as bar:
        bar.update(1)
    assert screen.text() == ""


def test_there_is_none_where_nobody_sees_it(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    with ProgressBar("counting sheep", total=1) as bar:
        bar.update(1)
    assert capsys.readouterr().err == ""
