"""Embedding requests of gateways. Read in this order: ``servicer``, ``embedder``, ``checks``."""
