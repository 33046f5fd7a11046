"""Rows and the tables made of them."""

import math

from lmd.cli.common import to_rich
from lmd.reproduction.tables import best, curve, distinct, method_tables, number, row, select, settings_of


def example_rows() -> list[dict[str, object]]:
    rows = []
    for method, rate in (("gd", 0.9), ("md", 0.5)):
        for multiplier in (1.0, 2.0):
            for k in range(11):
                value = rate ** (multiplier * k) if multiplier == 1.0 or method == "md" else math.inf
                rows.append(row(method, k, "loss", value, objective="kl", multiplier=multiplier))
                rows.append(row(method, k, "seconds", 0.002 * k, objective="kl", multiplier=multiplier))
    return rows


def test_a_number_that_is_not_finite_is_none() -> None:
    assert row("gd", 0, "loss", math.nan)["value"] is None
    assert row("gd", 0, "loss", math.inf)["value"] is None
    assert row("gd", 0, "loss", 2)["value"] == 2.0


def test_select_distinct_best_and_curve() -> None:
    rows = example_rows()
    assert distinct(rows, "method") == ["gd", "md"]
    own = select(rows, method="md", multiplier=2.0)
    iterations, values = curve(own, "loss")
    assert iterations == list(range(11))
    assert values == [0.5 ** (2 * k) for k in range(11)]
    found = best(select(rows, metric="loss", iteration=10))
    assert found is not None
    assert (found["method"], found["multiplier"]) == ("md", 2.0)
    assert best([row("gd", 0, "loss", math.nan)]) is None
    assert math.isnan(curve(select(rows, method="gd", multiplier=2.0), "loss")[1][0])
    assert settings_of(rows, without=("multiplier",)) == [{"objective": "kl"}]


def test_the_table_takes_the_best_multiplier_at_each_iteration() -> None:
    (table,) = method_tables(example_rows(), "loss", ("multiplier",), iterations=(5, 10, 20))
    assert table.title == "objective kl"
    assert table.columns == ("method", "loss at 5", "loss at 10", "ms/iteration")
    lines = {line[0]: line[1:] for line in table.lines}
    assert lines["gd"] == (number(0.9**5), number(0.9**10), "2")
    assert lines["md"] == (number(0.5**10), number(0.5**20), "2")
    assert to_rich(table).row_count == 2


def test_where_larger_is_better() -> None:
    rows = [row("lmd", 10, "psnr", value, multiplier=m) for m, value in ((1, 30.0), (2, 35.0))]
    assert method_tables(rows, "psnr", ("multiplier",), largest=True)[0].lines[0][1] == "35"


def test_a_method_that_only_diverged_says_so_and_one_that_was_not_run_so_far_does_not() -> None:
    rows = [row("gd", 10, "loss", math.inf), row("lmd", 5, "loss", 1.0)]
    assert [line[1:3] for line in method_tables(rows, "loss")[0].lines] == [
        ("not measured", "diverged"),
        ("1", "not measured"),
    ]


def test_numbers_at_a_glance() -> None:
    assert [number(v) for v in (0.0, 3.14e-8, 0.0425, 31.44, 1e6)] == ["0", "3.1e-08", "0.0425", "31.4", "1.0e+06"]
