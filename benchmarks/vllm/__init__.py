"""Trees inside vLLM: a picture of segments, and times beside vLLM's own methods."""
