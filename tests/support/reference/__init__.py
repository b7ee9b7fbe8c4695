"""Independent computations that the engine is compared with, and the models they read."""
