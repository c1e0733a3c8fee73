"""Gemma 4's assistants: drafters without a cache of their own, over the target's keys and values."""
