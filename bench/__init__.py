"""Figures of speed: what TARSy adds to the time that models and tools take. `python -m bench` (or `make bench`)."""
