"""How `make site` turns the pages that GitHub shows into a site; mkdocs.yml names this file.

The site has the layout of the repository, so that links between pages need no change. Links to
things that the site does not have, such as folders, lead to the repository.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
INDEX = "docs/README.md"
TOP = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
_FENCE = re.compile(r" *(```|~~~)")
_MARKER = re.compile(r"(?:[-*+]|\d+\.) +")


def on_config(config: MkDocsConfig) -> None:
    """Take the navigation from the index, and name the anchors of headings as GitHub does."""
    from pymdownx.slugs import slugify

    config.nav = navigation((ROOT / INDEX).read_text())
    config.mdx_configs["toc"]["slugify"] = slugify(case="lower")
    if repository := config.extra["repository"]:
        config.extra["social"] = [{"icon": "fontawesome/brands/github", "link": repository}]


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Put the pages and the scenarios at the same paths as in the repository."""
    from mkdocs.structure.files import File

    of_docs = [file for file in files if file.src_dir == config.docs_dir]
    for file in of_docs:
        files.remove(file)
    scenarios = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("scenarios/*.yml"))
    for path in (*TOP, *scenarios, *(f"docs/{file.src_uri}" for file in of_docs)):
        files.append(File(path, str(ROOT), config.site_dir, config.use_directory_urls))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make MkDocs read a page as GitHub does."""
    folder = posixpath.dirname(page.file.src_uri)

    def link(match: re.Match[str]) -> str:
        text, target, _ = match.groups()
        path = posixpath.normpath(posixpath.join(folder, target))
        if path in files.src_uris or not (ROOT / path).exists():  # MkDocs reports missing targets
            return match[0]
        repository = config.extra["repository"]
        return f"[{text}]({repository}/tree/HEAD/{path})" if repository else text

    return _LINK.sub(link, indented(markdown))


def navigation(index: str) -> list[dict[str, Any]]:
    """Return a section for each heading of the index, with the pages that it links to first."""
    sections: list[dict[str, Any]] = [{"Home": "README.md"}, {"Documentation": INDEX}]
    seen: set[str] = set()
    for part in index.split("\n## ")[1:]:
        linked = [
            posixpath.normpath(posixpath.join("docs", match[2])) for match in _LINK.finditer(part)
        ]
        pages = [
            path for path in dict.fromkeys(linked) if path.endswith(".md") and path not in seen
        ]
        sections.append({part.partition("\n")[0]: pages})
        seen |= {*pages}
    return sections


def indented(markdown: str) -> str:
    r"""Indent lists as Python-Markdown expects: by four columns, with a blank line before them.

    >>> indented("Steps:\n1. one\n\n   more\n   - a")
    'Steps:\n\n1.  one\n\n    more\n    -   a'
    """
    return "\n".join(_indented(markdown.split("\n")))


def _indented(lines: list[str]) -> Iterator[str]:
    columns: list[int] = []  # where the text of each open item begins
    fenced = False
    before = ""
    for line in lines:
        if not line.strip():
            yield line
            before = ""
            continue
        indent = len(line) - len(line.lstrip())
        in_list = bool(columns)
        while not fenced and columns and indent < columns[-1]:
            columns.pop()
        start = columns[-1] if columns else 0
        marker = None if fenced or indent >= start + 4 else _MARKER.match(line, indent)
        if marker and before and not in_list:
            yield ""
        margin = "    " * len(columns)
        if marker:
            columns.append(marker.end())
            yield f"{margin}{marker[0].rstrip():4}{line[marker.end() :]}"
        else:
            yield margin + line[min(start, indent) :]
        fenced ^= bool(_FENCE.match(line))
        before = line
