"""Tool calls: arguments, their schemas, and results."""
