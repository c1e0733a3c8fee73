"""Trees inside vLLM: a picture of segments, and times compared with vLLM's own methods."""
