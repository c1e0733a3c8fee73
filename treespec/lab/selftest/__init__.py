"""The self-test of a model with speculation: `treespec.check`."""
