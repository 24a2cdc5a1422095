"""One operator process: its start and stop, a builder for each role, and the platform file in force."""
