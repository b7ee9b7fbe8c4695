"""Whether an engine can be trusted; the reasons why not are part of the worker's readiness.

Read in this order: ``self_check`` (an idle one computes at all), ``prober`` (it computes what it did before),
``sent_kv`` (what others have of one that does not).
"""
