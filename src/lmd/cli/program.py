"""The program `lmd`: its commands, its error messages and its exit codes."""

from __future__ import annotations

import atexit
import gc
import importlib
import io
import logging
import os
import sys
import threading
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import click

from lmd import __version__
from lmd.core.files import check_current_folder
from lmd.errors import InputError, LmdError

INTERRUPTED = 130  # the exit code after Ctrl-C, as in shells
NO_MEMORY = "can't allocate memory"  # part of the message of PyTorch, which raises a plain RuntimeError for this
COMMANDS = {  # in the order in which a newcomer needs them; each module is imported when its command runs
    "list": "lmd.reproduction.commands:list_command",
    "info": "lmd.cli.commands:info",
    "demo": "lmd.reproduction.commands:demo",
    "reproduce": "lmd.reproduction.commands:reproduce",
    "train": "lmd.reproduction.commands:train",
    "learn": "lmd.reproduction.commands:learn",
    "solve": "lmd.cli.solving:solve",
    "bench": "lmd.reproduction.commands:bench",
    "import": "lmd.cli.commands:import_command",
    "check": "lmd.reproduction.commands:check",
    "data": "lmd.reproduction.commands:data",
    "report": "lmd.reproduction.commands:report",
}


class _UnreadError(Exception):
    """The reader of stdout has closed the pipe."""


class _Program(click.Group):
    """A group that imports a command when it is used, and leaves broken pipes to `main` instead of click."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, function = COMMANDS[cmd_name].partition(":")
        return getattr(importlib.import_module(module), function)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise _UnreadError from None


@click.group(cls=_Program, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="lmd")
def cli() -> None:
    """Learned mirror descent: fast, certified solvers for classes of convex problems.

    \b
    Start with
      lmd demo                                        a tour, in under two minutes
      lmd list                                        experiments, tasks, trained solvers
      lmd reproduce simplex --preset standard         Figure 1 of the paper
    """


def program() -> None:
    """Run `main` as the whole process. This saves half a second, because garbage is not collected while PyTorch is
    imported, and objects are not destroyed at the end. Functions that `atexit` registered still run.
    """
    gc.set_threshold(400_000)
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it warns if the home folder is read-only
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the stream was closed before the start
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            click.echo(end.code, err=True)
    else:
        code = 0
    if code != INTERRUPTED:  # after Ctrl-C, threads do not write, so do not wait for them
        threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with suppress(OSError):
        sys.stderr.flush()
    os._exit(code)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line: exit code 0 on success, 2 on bad input, 130 after Ctrl-C, 1 for anything else."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a file name may be invalid Unicode
    try:
        check_current_folder()
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            answer = cli.main(arguments, prog_name="lmd", standalone_mode=False)
            sys.stdout.flush()
        sys.exit(answer if isinstance(answer, int) else 0)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else "")
        sys.exit(0)
    except (click.exceptions.Abort, KeyboardInterrupt):  # click turns Ctrl-C into Abort
        _fail("interrupted", INTERRUPTED)
    except click.ClickException as error:
        _fail(" ".join(error.format_message().split()), 2)
    except InputError as error:
        _fail(str(error), 2)
    except LmdError as error:
        _fail(str(error), 1)
    except ModuleNotFoundError as error:
        from lmd.core.extras import missing

        _fail(missing((error.name or "a module").split(".")[0]), 1)
    except (_UnreadError, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except MemoryError as error:
        _fail(_little_memory(error), 2)
    except OSError as error:  # such as a name that is too long, or a full disk
        place = "file" if error.filename is None else f"file: got {error.filename}"
        _fail(f"{place} ({error.strerror or error})", 2)
    except Exception as error:
        if NO_MEMORY in str(error):
            _fail(_little_memory(error), 2)
        if os.environ.get("LMD_DEBUG"):
            raise
        kind = f"internal error ({type(error).__name__}: {error})"
        _fail(f"{kind}; set LMD_DEBUG=1 to see where, and please report it", 1)


def _little_memory(error: Exception) -> str:
    asked = str(error).rpartition("you tried to allocate ")[2].split(". ")[0]
    given = f"no room for {asked}" if NO_MEMORY in str(error) else "no room for what this takes"
    return f"memory: got {given}, expected more memory, or something smaller to solve"


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    click.echo(f"lmd: warning: {' '.join(str(message).split())}", err=True)


def _fail(message: str, code: int) -> None:
    line = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in " ".join(message.split()))
    with suppress(OSError):  # stderr may be on the full disk too
        click.echo(f"lmd: {line}", err=True)
    sys.exit(code)
