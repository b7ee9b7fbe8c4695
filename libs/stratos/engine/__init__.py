"""The inference engine: runs without gRPC, without I/O, in whatever thread owns it.

Read in this order: ``engine`` (the contract), ``scheduler``, ``block_manager``, ``prefix_cache``, ``plan``,
``runner.base``, ``runner.torch_runner``, ``models.decoder``, ``fake``.
"""
