"""Whether a process lives, and whether it is ready."""
