"""What the process tells of itself: logs now; metrics and traces have their place here."""
