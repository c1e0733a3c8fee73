"""Warm starts that come with treespec."""
