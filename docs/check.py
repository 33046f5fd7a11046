"""Looks at a site that was built: every link between its pages leads somewhere, and its search knows a word."""

import html.parser
import re
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(html.parser.HTMLParser):
    """The links of a page and the places in it that links can name."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = {""}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.places |= {named[key] or "" for key in ("id", "name") if key in named}
        self.links += [named[key] or "" for key in ("href", "src") if named.get(key)]


def broken(folder: Path) -> list[str]:
    """Links to files, and to places in pages, that are not there; what is loaded from elsewhere counts as well."""
    pages = {path.resolve(): Page(path) for path in folder.rglob("*.html") if "_static" not in path.parts}
    wrong = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or link.startswith("#"):
                target, place = path, "" if parts.scheme or parts.netloc else unquote(parts.fragment)
            else:
                target, place = (path.parent / unquote(parts.path)).resolve(), unquote(parts.fragment)
            known = pages.get(target)
            if not target.exists() or (known is not None and place not in known.places):
                wrong.append(f"{path.relative_to(folder.resolve())}: {link}")
    return sorted(set(wrong))


def main(folder: Path) -> None:
    wrong = broken(folder)
    words = (folder / "searchindex.js").read_text(encoding="utf-8")
    if not re.search(r"certif", words):
        wrong.append("searchindex.js: nothing about certificates")
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{len(list(folder.rglob('*.html')))} pages, {size / 1e6:.1f} MB, {len(wrong)} broken links")
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
