"""Which sequences run in the next step, with how many tokens. Never imports torch.

Read in this order: ``scheduler``, ``order`` (which is first), ``budget`` (chunk sizes), ``cost_model`` (how long
steps take).
"""
