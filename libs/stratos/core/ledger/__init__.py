"""Cost of requests: pure functions, in integers alone.

Read in this order: ``usage`` (what a worker counted), ``steps`` and ``itls`` (times between tokens), ``pricing`` (from
tokens to money), ``prefix_hashes`` (what prompts share), ``entry`` (one request in the ledger), ``sums`` (what is added
up per day), ``violations`` (windows of missed promises), ``statement`` (a tenant's month), ``costs`` (what the platform
paid), ``exports`` (rows of files).
"""
