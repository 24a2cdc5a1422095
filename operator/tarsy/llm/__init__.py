"""Models: one module a provider's SDK, and around them one policy of limits and retries."""
