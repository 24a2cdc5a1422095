"""Routes of TARSy itself: its setup, its queue, its warnings, its MCP servers."""
