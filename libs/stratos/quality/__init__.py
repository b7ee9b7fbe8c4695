"""How good a model is beside another one, measured token by token: what ``stratos evaluate`` runs.

The command line starts it in a process of its own (``python -m stratos.quality``), since it loads models by torch.

Read in this order: ``held_out`` (texts cut into windows), ``strata`` (which tokens are looked at alone),
``scored_model`` (scores windows, completes prompts), ``completions`` (prompts, and whether what follows parses),
``paired`` (intervals of paired differences), ``verdict`` (bounds), ``evaluation`` (two models beside each other),
``expected`` (what a model says of itself, checked by workers at start), ``trial`` (a folder before it is published).
"""
