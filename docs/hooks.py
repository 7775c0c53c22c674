"""What the site has beside the Markdown files of docs/: README, changelog, examples, notebooks.

Those files stay where they are, and links between files work in any viewer of files. Here such
links become links between pages, and formulas become MathML, which browsers draw by themselves.
"""

import html
import json
import os
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(?<=\]\()([^)#\s:]+)(?=[)#])")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


def _outside() -> dict[Path, str]:
    """Return the pages that are made from other files, by file."""
    pages = {
        ROOT / "README.md": "index.md",
        ROOT / "CONTRIBUTING.md": "contributing.md",
        ROOT / "CHANGELOG.md": "changelog.md",
    }
    for file in [*ROOT.glob("examples/*.py"), *ROOT.glob("docs/notebooks/*.ipynb")]:
        pages[file] = f"{file.parent.name}/{file.stem}.md"
    return pages


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Add the pages of other files."""
    for file, uri in _outside().items():
        files.append(File.generated(config, uri, content=_markdown(file)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Turn links to files into links to pages."""
    outside = _outside()
    made_from = {uri: file for file, uri in outside.items()}
    here = page.file.src_uri
    folder = made_from.get(here, ROOT / "docs" / here).parent

    def link(match: re.Match[str]) -> str:
        target = (folder / match[1]).resolve()
        if not target.exists():
            return match[1]  # mkdocs says so
        uri = outside.get(target) or os.path.relpath(target, ROOT / "docs")
        return os.path.relpath(uri, Path(here).parent)

    return LINK.sub(link, markdown)


def on_page_content(content: str, **_: Any) -> str:
    """Turn formulas into MathML."""

    def formula(match: re.Match[str]) -> str:
        kind = "inline" if match[1] == "span" else "block"
        return convert(html.unescape(match[2]), display=kind)

    return FORMULA.sub(formula, content)


def _markdown(file: Path) -> str:
    """Return a file as a page."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        download = f'\n<a href="{file.name}" download>Download this notebook</a>\n'
        return "\n".join([*map(_cell, cells), download])
    if file.suffix == ".py":
        return f"# {file.name}\n\n```python\n{text}```\n"
    return text


def _cell(cell: dict[str, Any]) -> str:
    source = "".join(cell["source"])
    return f"{source}\n" if cell["cell_type"] == "markdown" else f"```python\n{source}\n```\n"
