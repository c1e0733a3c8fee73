"""From names, folders and models to drafters and scorers."""
