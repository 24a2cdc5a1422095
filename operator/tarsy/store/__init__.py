"""Postgres: the queue with its fence, and the transcript. The only room that speaks SQL."""
