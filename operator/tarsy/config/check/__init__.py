"""Checks of chains against the platform file."""
