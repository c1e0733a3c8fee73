"""Output that follows a JSON schema: valid, distributed as in plain constrained decoding, and faster than free text."""
