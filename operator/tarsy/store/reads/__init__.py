"""Reads of the store: investigations, lists, stages and transcripts."""
