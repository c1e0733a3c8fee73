"""Trained draft heads in plain torch: their layers, their modules and their files."""
