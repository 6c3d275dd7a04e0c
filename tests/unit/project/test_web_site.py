"""The documentation as a web site: it has every page, and each reads the same as on GitHub."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

import hooks

ROOT = Path(__file__).parents[3]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
COUNTED = {"h1", "h2", "h3", "ul", "ol", "li", "pre", "code", "table", "tr", "strong", "em", "a"}


class Reader(HTMLParser):
    """Reads the words of a page, and counts the elements that contain them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self._text: list[str] = []
        self.counts = dict.fromkeys(COUNTED, 0)
        self._in_permalink = False
        self.feed(html)
        self.words = "".join(self._text).split()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_permalink = ("class", "headerlink") in attrs
        if tag in COUNTED and not self._in_permalink:
            self.counts[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        self._in_permalink = False

    def handle_data(self, data: str) -> None:
        if not self._in_permalink:
            self._text.append(data)


def test_navigation_has_the_pages_of_the_index_once_under_its_headings() -> None:
    index = (
        "# Docs\n\n## Learn\n\n[A](a.md): b\n\n## Do\n\n- [C](c/d.md#e), [A](a.md)\n"
        "- [S](../S.md), [x](https://x.md/y)\n"
    )
    assert hooks.navigation(index)[2:] == [
        {"Learn": ["docs/a.md"]},
        {"Do": ["docs/c/d.md", "S.md"]},
    ]


def test_navigation_has_every_page() -> None:
    sections = hooks.navigation((ROOT / hooks.INDEX).read_text())
    listed = [
        page
        for section in sections
        for pages in section.values()
        for page in ([pages] if isinstance(pages, str) else pages)
    ]
    assert sorted(listed) == sorted(page.relative_to(ROOT).as_posix() for page in PAGES)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("Steps:\n1. one\n\n   more\n   - a", "Steps:\n\n1.  one\n\n    more\n    -   a"),
        (
            "- a\n\n  ```sh\n  - no item\n  ```\n\nend",
            "-   a\n\n    ```sh\n    - no item\n    ```\n\nend",
        ),
        ("text\n\n    - code", "text\n\n    - code"),
        ("- a\n  - b\n    c\n- d", "-   a\n    -   b\n        c\n-   d"),
        ("a - b\n*c* d", "a - b\n*c* d"),
    ],
)
def test_lists_are_indented_as_the_web_site_needs_it(written: str, read: str) -> None:
    assert hooks.indented(written) == read


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not find_spec("mkdocs"):
        pytest.skip("`make site` installs mkdocs")
    directory = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--config-file",
        ROOT / ".github" / "site" / "mkdocs.yml",
        "--site-dir",
        directory,
    ]
    environment = {
        **os.environ,
        "NO_MKDOCS_2_WARNING": "1",
        "REPOSITORY_URL": "https://example.org/harness",
    }
    # Without access to any other host.
    environment |= dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")
    completed = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stderr
    return directory


def article(site: Path, page: Path) -> str:
    path = page.relative_to(ROOT)
    html = (
        site / path.with_name("index.html" if path.stem == "README" else f"{path.stem}.html")
    ).read_text()
    return html.partition("<article")[2].partition(">")[2].partition("</article>")[0]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page_reads_the_same_on_the_web_site_and_on_github(page: Path, site: Path) -> None:
    there = Reader(article(site, page))
    here = Reader(MarkdownIt("commonmark").enable("table").render(page.read_text()))
    assert there.words == here.words
    assert there.counts == here.counts


def test_folders_are_linked_in_the_repository(site: Path) -> None:
    assert 'href="https://example.org/harness/tree/HEAD/examples"' in article(
        site, ROOT / "docs" / "pytest.md"
    )


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = re.findall(
            r'<(?:script|img|source|iframe)[^>]+src(?:set)?="?([^" >]+)|<link([^>]+)>',
            page.read_text(),
        )
        for source, link in loaded:
            assert not source.startswith(("http", "//")), page
            assert 'rel="canonical"' in link or "http" not in link, page


def test_search_finds_every_page(site: Path) -> None:
    found = {
        entry["location"].partition("#")[0]
        for entry in json.loads((site / "search/search_index.json").read_text())["docs"]
    }
    assert {page.relative_to(site).as_posix() for page in site.rglob("*.html")} - found == {
        "404.html"
    }
