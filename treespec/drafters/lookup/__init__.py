"""Drafters that look tokens up in tables and texts, without a model."""
