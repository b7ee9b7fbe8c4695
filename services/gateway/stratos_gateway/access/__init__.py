"""API keys, and how much may be open at once. Read in this order: ``auth``, ``config``, ``concurrency``."""
