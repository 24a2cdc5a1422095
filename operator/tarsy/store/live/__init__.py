"""Text that a model is writing, passed between processes."""
