"""One self-contained HTML page: words, figures, tables, verdicts, settings; also served live."""

from fedmom.report.html.build import write_page
from fedmom.report.html.sections import Part, Section, Settings, Status, Verdict, Words

__all__ = ["Part", "Section", "Settings", "Status", "Verdict", "Words", "write_page"]
