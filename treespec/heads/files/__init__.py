"""Files of draft heads: public checkpoint formats read, the speculators format written."""
