"""The queue and its fence: claims, leases, the journal and questions."""
