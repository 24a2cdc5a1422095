"""Evaluation: scenarios, their recorded worlds, runs through a real worker, verdicts and reports."""
