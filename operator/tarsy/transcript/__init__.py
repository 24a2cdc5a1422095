"""The transcript: what was said, asked and found, entry by entry. It is the state; everything else is derived."""
