"""The paths, fields and words of earlier TARSy clients, which call an investigation a session."""
