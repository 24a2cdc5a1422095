"""Live events for subscribers, over WebSocket and as Server-Sent Events."""
