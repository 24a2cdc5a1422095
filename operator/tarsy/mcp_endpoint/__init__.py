"""TARSy as an MCP server, for other agents."""
