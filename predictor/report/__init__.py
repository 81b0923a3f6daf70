"""What a run has to show: tables, findings in words, all its figures, and one self-contained HTML page.

Imports everything of `predictor`; nothing imports it but the command line.
"""
