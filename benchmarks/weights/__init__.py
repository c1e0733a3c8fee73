"""Quantised and half-precision weights: which are served, how they compare with plain `generate`, how fast they are."""
