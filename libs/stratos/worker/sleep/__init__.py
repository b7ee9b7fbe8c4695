"""Sleep of a worker: memory of its model is free for another one, and the process stays.

``sleeper`` is the state machine.
"""
