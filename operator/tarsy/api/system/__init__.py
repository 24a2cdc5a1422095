"""The routes about TARSy itself: its setup, its queue, its warnings, its MCP servers."""
