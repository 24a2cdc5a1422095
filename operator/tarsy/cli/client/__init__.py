"""The common parts of commands: the cluster through kubectl, the API over HTTP, and output for people and programs."""
