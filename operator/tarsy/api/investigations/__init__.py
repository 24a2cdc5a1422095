"""Routes of investigations: lists, reads, traces, exports, actions and questions."""
