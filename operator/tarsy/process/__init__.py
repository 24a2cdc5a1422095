"""One operator process: its start and stop, a builder for each role, and what it runs with."""
