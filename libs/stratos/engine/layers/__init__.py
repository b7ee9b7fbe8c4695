"""Building blocks of decoders: linear layers and rotary embeddings."""
