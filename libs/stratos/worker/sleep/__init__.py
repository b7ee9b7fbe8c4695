"""Sleep of a worker: memory of its model is free for another one, and the process stays.

Read in this order: ``sleeper`` (the states), ``wiring`` (what a worker waits for before it sleeps).
"""
