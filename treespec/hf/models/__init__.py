"""transformers models as scorers of trees, and what is known of a model."""
