"""Texts that models are writing, passed between processes."""
