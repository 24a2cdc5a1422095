"""MCP servers: connections that investigations share, and the tools that an execution sees."""
