"""Runners of step plans (``contract.runner``): loads a model, runs its forward passes, samples.

Read in this order: ``torch_runner``, ``device_room``, ``kernels`` (which are chosen), ``step_inputs``, ``forward``,
``native_forward``, ``numerics``, ``threads``, ``pooling``, ``prompt_logprobs``, ``streaming``, then ``cuda``.
"""
