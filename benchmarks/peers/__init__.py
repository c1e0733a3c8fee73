"""Trees compared with what people run today and with other libraries, on the same prompts and weights."""
