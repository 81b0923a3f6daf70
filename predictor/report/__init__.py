"""What a run has to show: tables, findings in words, all its figures, and one self-contained HTML page.

Imports everything of `predictor`; nothing imports it but the command line.
"""

from predictor.report.page import write_report

__all__ = ["write_report"]
