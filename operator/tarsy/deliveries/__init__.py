"""Messages about investigations, in the form that each type of receiver takes."""
