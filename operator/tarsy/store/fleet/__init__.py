"""Facts that all processes share: the catalogue, tool pins, the leader, rate limits."""
