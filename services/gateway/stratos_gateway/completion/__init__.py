"""The completions route of OpenAI's older API: its bodies, and its answers where they show less than was generated.

Read in this order: ``requests``, ``forms``.
"""
