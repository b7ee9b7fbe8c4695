"""Shapes of models: from a ``config.json``, or from the table of models that are known by name.

Read in this order: ``shape``, ``config_json`` (what a configuration says), ``known`` (names, sources, changed fields).
"""
