"""The command line. Light: nothing heavy is imported before the command that needs it."""
