"""The callers of the API: who they are, and what they may do."""
