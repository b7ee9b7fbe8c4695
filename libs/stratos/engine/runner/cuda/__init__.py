"""The runner on a GPU: decode steps from CUDA graphs, one step ahead of the host.

Read in this order: ``runner``, ``tables`` (inputs that stay on the device), ``packed_inputs``, ``graphs``, ``experts``,
``page_copies``, ``device_facts``, ``warm_up``.
"""
