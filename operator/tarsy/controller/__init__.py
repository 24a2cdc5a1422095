"""Keeps cluster and store in step: admits new objects of the cluster, and writes the store's state into `.status`."""
