"""What there is: `lmd list`, `lmd info`, `lmd data`."""

from __future__ import annotations

from typing import Any

import click

from lmd.cli.common import JSON, Ordered, print_json, print_table


@click.command("list")
@JSON
def list_command(as_json: bool) -> None:
    """Show the experiments, the tasks and the trained solvers.

    \b
    Example
      lmd list --json
    """
    from lmd import tasks, zoo
    from lmd.imaging.files import TASKS
    from lmd.reproduction import experiments

    tried = [experiments.get(name) for name in experiments.names()]
    found: dict[str, list[dict[str, Any]]] = {
        "experiments": [{"name": e.name, "title": e.title, "paper": e.paper} for e in tried],
        "tasks": [
            {
                "name": task.name,
                "title": task.title,
                "bench": [*([task.name] if task.contest else []), *task.models],
                "solve": task.name in TASKS,
            }
            for task in tasks.every()
        ],
        "solvers": [
            {"name": name, "title": zoo.recipe(name).title, "shipped": zoo.shipped(name)} for name in zoo.names()
        ],
    }
    if as_json:
        print_json(found)
        return
    from lmd.reproduction.report.tables import Table

    lines = tuple((e["name"], e["paper"], e["title"]) for e in found["experiments"])
    print_table(Table("Experiments: lmd reproduce NAME", ("name", "paper", "what it shows"), lines))
    several = [t for t in found["tasks"] if t["bench"] not in ([], [t["name"]])]
    shown = tuple(
        (
            t["name"],
            "see below" if t in several else "yes" if t["bench"] else "no",
            "yes" if t["solve"] else "no",
            t["title"],
        )
        for t in found["tasks"]
    )
    columns = ("name", "lmd bench", "lmd solve", "what it is")
    print_table(Table("Tasks", columns, shown))
    for task in several:
        click.echo(f"For {task['name']} lmd bench takes: {', '.join(task['bench'])}\n")
    lines = tuple((s["name"], "yes" if s["shipped"] else "no", s["title"]) for s in found["solvers"])
    print_table(Table("Solvers: lmd.zoo.load(NAME), lmd train NAME", ("name", "ships", "what it is"), lines))


@click.command()
@JSON
def info(as_json: bool) -> None:
    """Show versions, the compiled code in use, threads, devices, extras and the cache.

    \b
    Example
      lmd info --json
    """
    from lmd.info import info, told

    found = info()
    if as_json:
        print_json(found)
    else:
        click.echo("\n".join(told(found)))


@click.group(cls=Ordered)
def data() -> None:
    """Show the datasets, or fetch one.

    \b
    Examples
      lmd data list
      lmd data fetch mnist
    """


@data.command("list")
@JSON
def data_list(as_json: bool) -> None:
    """Show the datasets, where they come from and whether they are here.

    \b
    Example
      lmd data list --json
    """
    from lmd.data import datasets
    from lmd.reproduction.report.tables import Table

    found = datasets()
    if as_json:
        keys = ("name", "title", "source", "present")
        print_json([{key: getattr(dataset, key) for key in keys} for dataset in found])
        return
    lines = tuple((d.name, "yes" if d.present else "no", d.title, d.source) for d in found)
    print_table(Table("", ("name", "here", "what it is", "where it comes from"), lines))


@data.command("fetch")
@click.argument("name")
def data_fetch(name: str) -> None:
    """Download the dataset NAME, check it, and keep it in the cache.

    \b
    Example
      lmd data fetch mnist
    """
    from lmd.data import fetch

    folder = fetch(name)
    click.echo(f"{name}: {'ships with a dependency, nothing to fetch' if folder is None else folder}")
