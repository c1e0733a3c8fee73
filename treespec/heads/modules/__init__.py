"""Draft heads as plain torch modules."""
