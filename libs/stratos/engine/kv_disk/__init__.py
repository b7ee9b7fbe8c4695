"""KV blocks on disk, the third tier: sealed files that outlive the process. Never imports torch.

Read in this order: ``block_seal`` (what a file holds), ``block_folder`` (files), ``disk_index`` (which blocks, in what
order they go), ``removals``, ``tenant_keys``, ``counts``, ``disk_costs``, ``block_load``, ``disk_tier`` (all of them
together).
"""
