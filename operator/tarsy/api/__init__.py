"""The HTTP API: it takes alerts, and serves investigations and their transcripts."""
