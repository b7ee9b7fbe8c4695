"""Base models as records, and what gateways read of them in the object store.

Read in this order: ``model_record``, ``forms`` (a record as JSON), ``alias_record``, ``alias_forms``, ``names`` (which
one a model can have), ``rollout_record``, ``rollout_forms``, ``texts`` (tokenizer, templates and configuration by
their digest).
"""
