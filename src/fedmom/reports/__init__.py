"""Results shown to people: tables, charts, printed figures and HTML pages."""
