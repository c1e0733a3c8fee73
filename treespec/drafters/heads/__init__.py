"""Drafters with a trained head on hidden states of the target."""
