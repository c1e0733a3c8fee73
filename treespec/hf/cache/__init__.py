"""Key-value caches that rejected nodes can be removed from."""
