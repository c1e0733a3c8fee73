"""P-EAGLE: EAGLE-3's layers, which draft all depths in one pass."""
