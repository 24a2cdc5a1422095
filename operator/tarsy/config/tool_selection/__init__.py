"""Tool selection: the tools that the agents of a chain get, and patterns without effect."""
