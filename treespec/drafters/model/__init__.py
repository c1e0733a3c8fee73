"""Drafters that are causal language models: a second model, one with another tokenizer."""
