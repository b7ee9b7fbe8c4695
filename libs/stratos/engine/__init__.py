"""The inference engine: runs without gRPC, without I/O, in the one thread that owns it.

Two wings meet at ``contract``.  The host wing never imports torch: ``core``, ``step_loop``, ``sequence``,
``scheduler``, ``kv_cache``, ``requests``, ``grammar``, ``speculation``, ``fake``.  The device wing computes:
``runner``, ``models``, ``checkpoint``, ``layers``, ``attention``, ``sampling``, ``lora``, ``memory``, ``native``,
``triton_kernels``.

Read in this order: ``settings`` (what an operator sets), ``contract``, ``core``, ``step_loop``, ``scheduler``,
``kv_cache``, ``requests``, ``speculation``, then ``runner``, ``models``, ``attention``, ``sampling``; at last
``switches`` (what benchmarks alone turn).
"""
