"""GPU kernels in Triton, nothing else: each module holds kernels of one topic and the functions that launch them.

An import of a module here needs Triton, so the engine does it only where a GPU is asked for.  Every kernel runs
in Triton's interpreter too, in float32.  A length or a count never selects a variant of a kernel
(``do_not_specialize``): another value would compile it again in the middle of serving.

Read in this order: ``norms``, ``rope_kv``, ``linear``, ``attention``, ``merging`` (split contexts), ``sampling``,
``split_sampling``, ``lora``, ``experts``, ``few_rows``, ``codes``, ``kv_copies``, ``decode_inputs``,
``dependent_launch``.
"""
