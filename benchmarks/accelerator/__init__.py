"""What a step would cost on an accelerator, counted without one."""
