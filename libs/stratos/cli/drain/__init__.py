"""``stratos drain``: a worker of a running platform leaves, and its streams go on at others."""
