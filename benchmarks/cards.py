"""The cards of the solvers that ship: what is written on them beside what is measured now.

    python benchmarks/cards.py [NAME...] [--write]

With --write the cards are written anew; weights and their hashes are left as they are. A solver whose training data are
not at hand (MNIST, see LMD_DATA) keeps its card.
"""

from __future__ import annotations

import argparse

import lmd
from lmd.core.checks import check_choice
from lmd.core.files import read_json, write_json
from lmd.reproduction import recipes
from lmd.solvers.saving import SOLVER_FILE
from lmd.zoo import SHIPPED_PRESET, TRAINED

SHIPPED = lmd.zoo.names()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these solvers")
    parser.add_argument("--write", action="store_true", help="write the cards anew")
    arguments = parser.parse_args()
    for name in [check_choice("solver", name, SHIPPED) for name in arguments.names] or SHIPPED:
        if not recipes.ships_for(name, SHIPPED_PRESET):
            print(f"{name}: its data ({lmd.zoo.card(name)['data']}) are not at hand")
            continue
        before = lmd.zoo.card(name)
        now = recipes.make_card(name, SHIPPED_PRESET, before["seed"], lmd.zoo.load(name, bare=True))
        for entry, value in now["measured"].items():
            print(f"{name}: {entry}: {before['measured'].get(entry)} on the card, {value} now", flush=True)
        if arguments.write:
            path = TRAINED / name / SOLVER_FILE
            description = read_json(path)
            kept = {entry: before[entry] for entry in ("improved", "training_seconds") if entry in before}
            write_json(path, {**description, "card": {**kept, **now}})


if __name__ == "__main__":
    main()
