"""The vocabulary of the tests: fixtures that more than one tier uses, each started only when a test asks for it."""

pytest_plugins = ["support.cluster", "support.database", "support.loglines", "support.operators"]
