"""Contents of the data directory of ``stratos up``.

Read in this order: ``folder`` (the directory and its runs), ``credentials``, ``platform_facts`` (what a running
platform tells the other commands), ``log_rotation``, ``model_check``.
"""
