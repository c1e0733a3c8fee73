"""Models whose weights are elsewhere: offloaded to memory or disk, or split over processes that run them together."""
