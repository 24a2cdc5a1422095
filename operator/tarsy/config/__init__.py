"""The configuration of the process: its own settings and the platform file, loaded, checked and resolved."""
