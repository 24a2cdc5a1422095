"""Live updates: subscriptions, the hub, feeds of investigations and lists, and the two transports."""
