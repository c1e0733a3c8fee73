"""Drafting with heads on hidden states of the target: the parts that all kinds share."""
