"""The loopback world of this checkout: control plane, Postgres, scripted model, MCP server and proxy.

Never imported by tarsy and never shipped: it is what the demo, the tests and the benchmarks run against.
"""
