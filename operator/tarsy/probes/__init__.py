"""Liveness and readiness of a process, and health of all processes."""
