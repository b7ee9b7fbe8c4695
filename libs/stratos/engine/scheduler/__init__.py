"""Which sequences run in the next step, with how many tokens. Never imports torch.

Read in this order: ``decision``, ``scheduler``, ``steady`` (the same again), ``order`` (which is first), ``shares``
(prompts of one step), ``pauses`` (streams that leave it to them), ``budget`` (chunk sizes), ``cost_model`` (how long
steps take).
"""
