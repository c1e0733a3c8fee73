"""Models x prompts x adapters x weights x constraints: what is identical to plain `generate`, what is refused."""
