"""How few-shot recognition is measured: category split, support draws, tasks, methods, accuracies, the paper's tables.

Imports `actstore` alone; knows nothing of phi.
"""
