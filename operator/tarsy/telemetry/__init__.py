"""Telemetry of the process: logs now; metrics and traces have their place here."""
