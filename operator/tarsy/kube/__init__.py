"""The cluster: the only room that speaks to the API server."""
