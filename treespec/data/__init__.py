"""Warm starts and heads that come with treespec."""
