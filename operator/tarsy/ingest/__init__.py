"""Payloads of alert sources, and the objects that ask for investigations. Pure: no cluster, no store."""
