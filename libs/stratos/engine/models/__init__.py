"""The one decoder that all model families share; they differ by configuration (``checkpoint``), not by class.

Read in this order: ``decoder`` (it needs layers and attention only), ``reloading`` (its weights leave memory and come
back).
"""
