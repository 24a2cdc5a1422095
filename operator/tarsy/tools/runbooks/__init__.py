"""Runbooks: their addresses and their download."""
