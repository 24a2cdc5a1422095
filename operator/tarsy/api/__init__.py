"""The HTTP API: webhooks come in, transcripts go out."""
