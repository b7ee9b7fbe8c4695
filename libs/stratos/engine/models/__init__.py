"""The one decoder that all model families share; they differ by configuration (``checkpoint``), not by class.

Read ``decoder``: it needs ``layers`` and ``attention`` only.
"""
