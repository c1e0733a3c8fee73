"""MTP: the multi-token-prediction layers that come in a checkpoint with the target itself."""
