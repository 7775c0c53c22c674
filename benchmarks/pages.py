"""Puts what was measured into the documentation, between marks that the page has."""

from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"
PERFORMANCE = DOCS / "performance.md"
SCALE = DOCS / "scale.md"


def write_section(name: str, text: str, page: Path = PERFORMANCE) -> None:
    """Put the text between ``<!-- NAME: begin -->`` and ``<!-- NAME: end -->`` of the page."""
    begin, end = (f"<!-- {name}: {place} -->\n" for place in ("begin", "end"))
    before, _, rest = page.read_text().partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise SystemExit(f"{page.name} has no place marked {name}.")
    page.write_text(f"{before}{begin}{text}{end}{after}")


def markdown(columns: list[str], rows: list[list[str]]) -> str:
    """Return a table, its first column to the left and numbers to the right."""
    lines = [columns, ["---", *["--:"] * (len(columns) - 1)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
