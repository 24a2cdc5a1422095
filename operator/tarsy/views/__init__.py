"""The views of investigations and of the installation: models and pure builders, without a web framework."""
