"""The tools that the agents of a chain get."""
