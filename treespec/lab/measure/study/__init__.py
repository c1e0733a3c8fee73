"""Studies: a grid of drafters, trees, rules and samplings on one model and its prompts, run, kept and compared."""
