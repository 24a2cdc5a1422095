"""Keeps cluster and store in step: what appears in the cluster is admitted, what the store knows becomes status."""
