"""HTTP as the API serves it: connections, limits, problems, strict requests, trusted proxies."""
