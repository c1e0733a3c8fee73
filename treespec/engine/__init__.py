"""The loop that decodes: draft, score, verify, commit; what a call asks of it, and what it counts."""
