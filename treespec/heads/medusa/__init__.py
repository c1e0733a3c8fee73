"""Medusa: one small network per depth on the last hidden state."""
