"""The model of the platform file."""
