"""What entries mean, kind by kind: their order, their effect on the record, their text, their events."""
