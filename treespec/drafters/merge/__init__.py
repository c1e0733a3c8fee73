"""Several drafters in one tree."""
