"""EAGLE-3: a decoder layer over features of the target and the tokens so far."""
