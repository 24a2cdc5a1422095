"""Claims queued investigations and runs them, under leases that a separate thread renews."""
