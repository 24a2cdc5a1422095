"""The callers of the API: their credentials, identities, sessions and permissions."""
