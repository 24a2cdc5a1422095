"""The comparison of results of reading tools: whether what was read again is alike."""
