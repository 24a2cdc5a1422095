"""Tools of MCP servers: connections, the selection for an agent, calls and results; and runbooks."""
