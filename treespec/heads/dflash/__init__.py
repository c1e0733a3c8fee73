"""DFlash and DSpark: all depths in one pass over a block of mask tokens."""
