"""Tools, through MCP servers: the connections, what of them an agent gets, and what their results come to."""
