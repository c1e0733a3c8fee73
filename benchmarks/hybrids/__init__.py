"""Trees on models with states: rounding, the time of a pass, and whole texts."""
