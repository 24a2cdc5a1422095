"""The transcript: the log of an investigation, entry by entry. It is the state; everything else is derived from it."""
