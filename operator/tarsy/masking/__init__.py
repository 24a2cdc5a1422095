"""Takes secrets out of text before it is stored or sent: first by structure, then by patterns."""
