"""Takes queued investigations and runs them, under a lease that a thread of its own keeps alive."""
