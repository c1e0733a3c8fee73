"""Text that a model writes: prompts, sampling, files, warm starts."""
