"""The meaning of entries, kind by kind: order, effect on the record, messages, events."""
