"""The page: self-contained, escaped, and complete."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from lmd.errors import FileError
from lmd.reproduction.figures import figure, legend_below, plot_curve, spread
from lmd.reproduction.page import Reading, write_page
from lmd.reproduction.tables import method_tables, row


def read(metrics: dict[str, Any]) -> Reading:
    return Reading(method_tables(metrics["rows"], "loss"), command="lmd reproduce toy")


class Tags(HTMLParser):
    """Collects tags, and whether they were closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "br", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def write_experiment(folder: Path, **changes: object) -> None:
    (folder / "figures").mkdir(parents=True)
    with figure(3, 2) as drawing:
        axes = drawing.subplots()
        plot_curve(axes, [0, 1], [1.0, 0.1], "gd")
        legend_below(drawing, ("gd", "lmd-adaptive"))
        drawing.savefig(folder / "figures" / "one.png")
    metrics = {
        "experiment": "toy",
        "title": "A toy with <angles> & ampersands",
        "paper": "Figure 0",
        "preset": "quick",
        "seed": 0,
        "seconds": 1.5,
        "versions": {"torch": "x"},
        "facts": {"data": "made <up>"},
        "figures": [{"file": "figures/one.png", "caption": 'a "quoted" caption'}],
        "rows": [row("gd", k, "loss", 0.5**k) for k in range(11)],
    }
    (folder / "metrics.json").write_text(json.dumps({**metrics, **changes}))


def test_the_page_is_whole_and_needs_no_network(tmp_path: Path) -> None:
    write_experiment(tmp_path / "toy")
    page = write_page(tmp_path, read)
    text = page.read_text(encoding="utf-8")
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert "A toy with &lt;angles&gt; &amp; ampersands" in text
    assert "<angles>" not in text
    images = [attributes["src"] or "" for tag, attributes in tags.seen if tag == "img"]
    assert len(images) == 1
    assert images[0].startswith("data:image/png;base64,iVBOR")
    assert not re.search(r"(src|href)=\"(?!data:|#)", text)
    assert "http" not in re.sub(r"base64,[^\"]*", "", text)
    assert "0.0312" in text, "the table shows the loss at iteration 5"
    assert text == write_page(tmp_path, read).read_text(encoding="utf-8"), "the same results give the same page"


class TestTheFolderIsKeptTo:
    """Nothing that lies elsewhere comes onto the page, whatever metrics.json says."""

    @pytest.mark.parametrize("file", ["/{}/secret.png", "../../secret.png", "link.png", "figures/../../../secret.png"])
    def test_a_figure_elsewhere(self, tmp_path: Path, file: str) -> None:
        folder = tmp_path / "results"
        write_experiment(folder / "toy", figures=[{"file": file.format(tmp_path), "caption": ""}])
        (folder / "toy" / "figures" / "one.png").rename(tmp_path / "secret.png")
        (folder / "toy" / "link.png").symlink_to(tmp_path / "secret.png")
        with pytest.raises(FileError, match=r"^figure: got .*, which leads elsewhere, expected a file in .*toy$"):
            write_page(folder, read)
        assert not (folder / "index.html").exists()

    def test_a_metrics_file_elsewhere(self, tmp_path: Path) -> None:
        write_experiment(tmp_path / "elsewhere")
        (tmp_path / "results" / "toy").mkdir(parents=True)
        (tmp_path / "results" / "toy" / "metrics.json").symlink_to(tmp_path / "elsewhere" / "metrics.json")
        with pytest.raises(FileError, match=r"^file: got .*metrics\.json, which leads elsewhere"):
            write_page(tmp_path / "results", read)

    def test_a_folder_that_is_reached_by_a_link(self, tmp_path: Path) -> None:
        write_experiment(tmp_path / "results" / "toy")
        (tmp_path / "link").symlink_to("results")
        assert write_page(tmp_path / "link", read).is_file()

    def test_a_figure_that_is_none(self, tmp_path: Path) -> None:
        write_experiment(tmp_path / "toy", figures=[{"file": "metrics.json", "caption": ""}])
        with pytest.raises(FileError, match=r"^figure: got .*metrics\.json, not a PNG"):
            write_page(tmp_path, read)


def test_a_missing_figure_is_named(tmp_path: Path) -> None:
    write_experiment(tmp_path / "toy", figures=[{"file": "figures/gone.png", "caption": ""}])
    with pytest.raises(FileError, match=r"gone\.png"):
        write_page(tmp_path, read)
    assert not (tmp_path / "index.html").exists()


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"has no metrics\.json"):
        write_page(tmp_path, read)


def test_frames_become_a_film_or_a_comparison(tmp_path: Path) -> None:
    write_experiment(tmp_path / "toy")
    entry = {"file": "figures/one.png", "caption": "both", "frames": ["before", "after"]}
    write_experiment(tmp_path / "other", experiment="other", figures=[entry])
    text = write_page(tmp_path, read).read_text(encoding="utf-8")
    assert 'data-count="2"' in text and "<span>before</span><span>after</span>" in text
    assert text.count("<code>lmd reproduce toy</code>") == 2, "the command stands under each figure"


def test_sections_are_in_the_order_of_their_places(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        write_experiment(tmp_path / name, experiment=name)
    places = {"b": 0, "a": 2, "c": 1}
    page = write_page(tmp_path, lambda metrics: Reading([], place=places[metrics["experiment"]]))
    assert re.findall(r'<section id="(.)"', page.read_text(encoding="utf-8")) == ["b", "c", "a"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [([], []), ([0.5], [0.5]), ([0.1, 0.1, 0.1], [0.1, 0.2, 0.3]), ([0.9, 1.0, 1.0], [0.8, 0.9, 1.0])],
)
def test_labels_are_moved_apart(given: list[float], expected: list[float]) -> None:
    assert spread(given, 0.1) == pytest.approx(expected)
