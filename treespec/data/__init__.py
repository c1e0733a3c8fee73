"""Warm starts and heads that come with treespec."""

SHIPPED_FOR = "SmolLM2-135M-Instruct"
"""The model that they are for."""
