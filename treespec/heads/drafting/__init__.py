"""What drafters with a head on hidden states of the target share."""
