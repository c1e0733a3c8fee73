"""Measured control: what to draft at every step, from what passes cost and what was accepted."""
