"""`model.generate` by trees: one call, from its arguments to its output."""
