"""The cool-down of an alert after an investigation that came to nothing: `intake.episodes` waits for it.

`operations.retention` keeps rows as long as a cool-down may need them.
"""

from __future__ import annotations

from datetime import timedelta

MIN = timedelta(minutes=1)
"""The shortest cool-down of an investigation that came to nothing."""
FACTORS = (1, 4, 16)
"""Factors of the cool-down for the first, the second and all later investigations in a row that came to nothing."""
DAY = timedelta(hours=24)
"""The time in which the investigations that came to nothing are limited."""
