"""What happens, while it happens: to whoever watches, over WebSocket and as Server-Sent Events."""
