"""Telemetry of the process: logs and component states."""
