"""Runs one investigation: its stages in order, the agents of a stage, and what one stage hands to the next."""
