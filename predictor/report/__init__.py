"""One self-contained HTML page about a run: no network, images embedded."""

from predictor.report.page import write_report

__all__ = ["write_report"]
