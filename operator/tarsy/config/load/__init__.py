"""Reading of the platform file, its secrets and the settings of the process."""
