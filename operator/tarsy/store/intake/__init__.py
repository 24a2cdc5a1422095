"""Admission of alerts: new investigations, repeats, receipts, and alerts that no chain takes."""
