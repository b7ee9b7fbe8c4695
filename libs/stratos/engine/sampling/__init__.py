"""From logits to tokens, without a generator that has a state.

Read in this order: ``sampler`` (the pipeline), ``logits_processors``, ``watermark``, ``filters``, ``counter_rng``,
``logprobs``, then ``native_sampler`` with ``seen_tokens`` (one C++ call for a batch), ``triton_sampler`` (the same on a
GPU, without waiting) and ``waiting_sampler`` (its baseline).
"""
