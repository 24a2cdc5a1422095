"""What the process is told: settings of the process itself and the platform file, loaded, checked and resolved."""
