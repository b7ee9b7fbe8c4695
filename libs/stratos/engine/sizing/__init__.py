"""Sizes of an engine where nothing is set: type, KV pool and context that fit this machine and this model.

Read in this order: ``machine`` (what there is), ``operations`` (what a token takes), ``need`` (what the model
takes), ``case`` (both, and the settings that count), ``plan`` (pure: the choice, its reasons, and the refusal with
numbers), ``device`` (what the kind of device decides), ``fit`` (the same for a model folder and a configuration),
``report`` (the text).  Free of torch, so that a supervisor knows the answer before a worker has started.
"""
