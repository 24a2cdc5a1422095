"""The platform file without its secrets."""
