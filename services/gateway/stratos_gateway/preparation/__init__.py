"""From the body of a generation route to what runs: one pass, the same for every dialect of the API.

Read in this order: ``dialects`` (one row per route), ``generation`` (the pass), ``options`` (against plan and model),
``output_shape`` (what is looked for in a chat's output),
``enforcement`` (calls that must obey).
"""
