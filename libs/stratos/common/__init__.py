"""What every library needs and none owns: ``errors`` (one tree, with status codes as data), ``clock``, ``ids``."""
