"""The page in a real browser: what can be moved moves, nothing sticks out, nothing complains, nothing is fetched."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from lmd.errors import FileError
from lmd.reproduction.experiments import TOUR, get, read
from lmd.reproduction.experiments.base import Experiment, Session
from lmd.reproduction.experiments.base import reproduce as reproduce_experiment
from lmd.reproduction.figures import figure, label_lines, plot_curve
from lmd.reproduction.page import write_page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (Debian: apt-get install chromium)"),
]


class Toy(Experiment):
    """Everything that a section can have: a comparison, a film, a figure, a table, long facts."""

    name = "toy"
    title = "A toy"
    paper = "Figure 0"

    def run(self, session: Session) -> None:
        for method, rate in (("gd", 0.9), ("lmd", 0.5), ("adam", 0.7)):
            for k in range(21):
                session.record(method, k, "loss", rate**k)
        shades = {f"frame {k}": torch.full((3, 24, 40), k / 4) for k in range(5)}
        session.save_frames("film", shades, "a film")
        session.save_frames("both", {"dark": shades["frame 0"], "light": shades["frame 4"]}, "both")
        with figure(8.0, 4.0) as drawing:
            axes = drawing.subplots()
            plot_curve(axes, [1, 2], [1.0, 0.1], "lmd")
            label_lines(axes)
            session.save_figure("curve", drawing, "a curve")
        session.facts["long"] = "word" * 60


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    reproduce_experiment(Toy(), folder)
    return write_page(folder, read)


@pytest.fixture(scope="module")
def tour_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sections of what `lmd demo` shows, with pictures as large as there and fewer calls."""
    folder = tmp_path_factory.mktemp("tour")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lmd.reproduction.experiments.tour.TOLERANCES", (1e-1, 3e-2, 1e-2))
        patch.setattr("lmd.reproduction.experiments.tour.MAX_SECONDS", {"quick": 0.02})
        for name in ("photograph", "simplex"):
            reproduce_experiment(get(name), folder)
    return write_page(folder, read)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-background-networking", "--disable-gpu"]
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        yield launched
        launched.close()


@pytest.fixture(params=[390, 1400])
def page(browser: Any, page_file: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    with shown(browser, page_file, request.param) as opened:
        yield opened


@contextmanager
def shown(browser: Any, page_file: Path, width: int) -> Iterator[Any]:
    """A page at a width in pixels, which must neither complain nor fetch anything."""
    opened = browser.new_page(viewport={"width": width, "height": 900})
    complaints: list[str] = []
    opened.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("request", lambda asked: complaints.append(asked.url) if asked.url.startswith("http") else None)
    opened.goto(page_file.as_uri())
    yield opened
    opened.close()
    assert complaints == []


FITS = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"


def test_nothing_sticks_out(page: Any) -> None:
    assert page.evaluate(FITS)


@pytest.mark.parametrize("width", [390, 1400])
def test_sections_of_the_tour_fit(browser: Any, tour_file: Path, width: int) -> None:
    with shown(browser, tour_file, width) as page:
        assert page.evaluate(FITS)
        for image in page.locator("img").all():
            image.scroll_into_view_if_needed()  # they are loaded when they are seen
            page.wait_for_function("image => image.complete && image.naturalWidth > 0", arg=image.element_handle())
        page.locator(".frames input").first.focus()
        page.keyboard.press("Home")


def test_a_section_has_its_share_of_five_megabytes(tour_file: Path) -> None:
    assert tour_file.stat().st_size < 2 * 5e6 / len(TOUR)


def test_the_film_moves(page: Any) -> None:
    film = page.locator(".frames").first
    assert film.locator("output").inner_text() == "frame 0"
    film.locator("input").focus()
    page.keyboard.press("ArrowRight")
    assert film.locator("output").inner_text() == "frame 1"
    shown = film.locator(".screen div").first.evaluate("layer => getComputedStyle(layer).backgroundPosition")
    assert shown == "0px 25%"


def test_the_comparison_moves(page: Any) -> None:
    both = page.locator(".frames").nth(1)
    cut = "layer => getComputedStyle(layer).clipPath"
    before = both.locator(".screen div").nth(1).evaluate(cut)
    both.locator("input").focus()
    page.keyboard.press("Home")
    assert both.locator(".screen div").nth(1).evaluate(cut) != before
    assert both.locator("output").inner_text() == "left: dark, right: light"


def test_tables_sort_by_number_and_back(page: Any) -> None:
    first = "body => [...body.rows].map(row => row.cells[0].textContent)"
    button, body = page.locator("thead button").nth(2), page.locator("tbody").first
    button.click()
    assert body.evaluate(first) == ["lmd", "adam", "gd"]
    button.click()
    assert body.evaluate(first) == ["gd", "adam", "lmd"]
    assert page.locator("th").nth(2).get_attribute("aria-sort") == "descending"


def test_it_is_dark_where_the_reader_likes_it_dark(browser: Any, page_file: Path) -> None:
    shades = []
    for scheme in ("light", "dark"):
        opened = browser.new_page(color_scheme=scheme)
        opened.goto(page_file.as_uri())
        shades.append(opened.evaluate("getComputedStyle(document.body).backgroundColor"))
        opened.close()
    assert shades == ["rgb(255, 255, 255)", "rgb(22, 25, 29)"]


class TestHostileFiles:
    """Whatever a metrics.json, its captions and file names hold, nothing of it runs and nothing is fetched."""

    ATTACKS = (
        "<script>window.hit=1</script>",
        "</script><script>window.hit=1</script>",
        "</style><script>window.hit=1</script>",
        "</template><img src=x onerror=window.hit=1>",
        "\"><img src='http://example.com/x' onerror='window.hit=1'>",
        "' onmouseover='window.hit=1' autofocus onfocus='window.hit=1",
        "javascript:window.hit=1//",
        "url(http://example.com/x)); background: url(javascript:window.hit=1)",
        "{{ 7*7 }}{% for x in y %}${window.hit=1}",
        "<!--<svg onload=window.hit=1>--!><svg onload=window.hit=1>",
        "line\nfeed\r\u2028\u2029\x00\x1b[31m\u202e\ud800 <b>\ufffe",
        "&lt;script&gt;window.hit=1&lt;/script&gt;",
    )

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        folder = tmp_path / "hostile"
        folder.mkdir()
        for place, attack in enumerate(self.ATTACKS):
            name = "".join(letter for letter in attack if letter not in "/\x00\ud800")
            here = folder / f"{place} {name}"
            here.mkdir()
            sheet = {"light": torch.ones(3, 8, 8), "dark": torch.zeros(3, 8, 8)}
            session = Session("toy", "quick", 0, here)
            session.save_frames("sheet", sheet, "")
            shutil.copy(here / "figures" / "sheet.png", here / f"{name}.png")
            numbers = (1e308, -1e308, 5e-324, 0.0, -0.0, None)
            row = {"method": attack, "iteration": 5, "metric": "loss", attack: attack}
            metrics = {
                **dict.fromkeys(("experiment", "title", "paper", "preset"), attack),
                "seed": 2**53,
                "seconds": 1e308,
                "versions": {attack: attack},
                "facts": {attack: [attack, 1e308, None, True]},
                "figures": [
                    {"file": f"{name}.png", "caption": attack},
                    {"file": f"{name}.png", "caption": attack, "frames": [attack, attack]},
                    {"file": f"{name}.png", "caption": attack, "frames": [attack, "2", "3"]},
                ],
                "rows": [{**row, "value": number} for number in numbers]
                + [{**row, "iteration": attack, "metric": "seconds", "value": 1.0}],
            }
            (here / "metrics.json").write_text(json.dumps(metrics))
        return folder

    def test_nothing_runs(self, browser: Any, folder: Path) -> None:
        with shown(browser, write_page(folder, read, self.ATTACKS[0], {a: a for a in self.ATTACKS}), 1400) as page:
            dialogs: list[str] = []
            page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
            for link in page.locator("nav a").all():
                link.click()
            for place in page.locator("summary, thead button").all():
                place.click()
            for slider in page.locator("input").all():
                slider.focus()
                page.keyboard.press("ArrowRight")
            page.mouse.move(300, 300)
            assert page.evaluate("window.hit") is None and dialogs == []
            assert page.evaluate("document.querySelectorAll('script').length") == 1
            assert (
                page.evaluate("document.querySelectorAll('[onerror], [onload], [onfocus], [onmouseover]').length") == 0
            )
            assert page.url.startswith("file:") and page.evaluate(FITS)
            assert page.locator("section").count() == len(self.ATTACKS)
            assert page.locator("h2").all_inner_texts()[0] == self.ATTACKS[0]

    @pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400", "-1e400", "1" * 400])
    def test_numbers_that_are_none_are_refused_in_one_line(self, tmp_path: Path, number: str) -> None:
        for key in ("seconds", "value"):
            metrics = {
                **dict.fromkeys(("experiment", "preset"), "toy"),
                **{"seed": 0, "versions": {}, "seconds": 0, "value": 0},
                "rows": [{"method": "gd", "iteration": 0, "metric": "loss", "value": "VALUE"}],
            }
            text = json.dumps(metrics | {"seconds": "SECONDS"})
            text = text.replace('"VALUE"', number if key == "value" else "0")
            (tmp_path / "metrics.json").write_text(text.replace('"SECONDS"', number if key == "seconds" else "0"))
            with pytest.raises(FileError, match=r"^file: got .*metrics\.json") as caught:
                write_page(tmp_path, read)
            assert "\n" not in str(caught.value) and not (tmp_path / "index.html").exists()
