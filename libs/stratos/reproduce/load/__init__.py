"""Loads of rows: what is asked of an engine, and one loop over it under a virtual clock and under the real one.

Read in this order: ``lengths`` (how long outputs are), ``asks`` (requests), ``driving`` (the loop and its times),
``virtual`` (engines without a model, under a clock of their own), ``kv_pool`` (how full one runs), ``sorting_sampler``
(what ours is compared with), ``loaded`` (models on this machine's engine), ``decode_speed`` (one stream at a length of
its context), ``paired`` (an interval of paired differences), ``worker_pair`` (a prefill and a decode worker as
processes), ``local_platform`` (all of a platform as processes).
"""
