"""Where KV lies: pages of the device, pages of the host, copies between them.

Read in this order: ``kv_pages`` (and the layout on the wire), ``packing``, ``host_pages``, ``copies``,
``huge_pages``, ``named_memory``.
"""
