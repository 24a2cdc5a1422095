"""Deletion: purges, retention, and the comparison of the store with the cluster."""
