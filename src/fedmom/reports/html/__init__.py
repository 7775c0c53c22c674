"""One self-contained HTML page: words, figures, tables, verdicts, settings; also served live."""

from fedmom.reports.html.render import write_page
from fedmom.reports.html.sections import Part, Section, Settings, Status, Verdict, Words

__all__ = ["Part", "Section", "Settings", "Status", "Verdict", "Words", "write_page"]
