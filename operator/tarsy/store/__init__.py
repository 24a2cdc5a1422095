"""Postgres: the queue with its fence, and the transcript. All SQL is here."""
