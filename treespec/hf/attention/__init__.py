"""Tree attention masks, and models that need more than a mask."""
