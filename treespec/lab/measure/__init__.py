"""Paired measurements of ways to decode."""
