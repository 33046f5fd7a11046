"""Compare the numbers of two folders that `lmd reproduce` wrote, row by row; times and memory are left out.

    lmd reproduce all --preset quick --seed 0 --out before
    (the change)
    lmd reproduce all --preset quick --seed 0 --out after
    python benchmarks/compare_metrics.py before after [--relative 1e-4] [--absolute 1e-9]

The exit code is 1 where a number differs by more than both, or is missing.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

TIMES = ("second", "time", "_ms", "memory", "bytes", "peak")  # metrics with these in their names depend on the machine


def rows_of(folder: Path) -> dict[tuple[Any, ...], float]:
    """The value of each row, by its experiment and everything else in it."""
    found: dict[tuple[Any, ...], float] = {}
    for path in sorted(folder.glob("*/metrics.json")):
        metrics = json.loads(path.read_text(encoding="utf-8"))
        for row in metrics["rows"]:
            if any(word in str(row["metric"]) for word in TIMES):
                continue
            names = tuple(sorted((key, str(value)) for key, value in row.items() if key != "value"))
            found[metrics["experiment"], names] = row["value"]
    return found


def differs(one: Any, other: Any, relative: float, absolute: float) -> bool:
    """Whether two values differ by more than the share; what is no number must be the same."""
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return abs(one - other) > max(relative * max(abs(one), abs(other)), absolute)
    return bool(one != other)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--relative", type=float, default=1e-4)
    parser.add_argument("--absolute", type=float, default=1e-9)
    arguments = parser.parse_args()
    bounds = (arguments.relative, arguments.absolute)
    before, after = rows_of(arguments.before), rows_of(arguments.after)
    missing = sorted(set(before) - set(after), key=str)
    changed = [key for key in before if key in after and differs(before[key], after[key], *bounds)]
    for key in missing[:20]:
        print(f"missing: {key}")
    for key in changed[:40]:
        print(f"{key[0]}: {before[key]} before, {after[key]} after: {dict(key[1])}")
    by_experiment = {name: sum(key[0] == name for key in changed) for name in sorted({key[0] for key in before})}
    print(
        f"{len(before)} rows before, {len(after)} after, {len(missing)} missing, {len(changed)} changed {by_experiment}"
    )
    sys.exit(1 if missing or changed or not before else 0)


if __name__ == "__main__":
    main()
