"""EAGLE, EAGLE-2 and HASS: a decoder layer over the target's last hidden state and the tokens so far."""
