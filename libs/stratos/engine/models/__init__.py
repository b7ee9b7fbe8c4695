"""The one decoder that all model families share; they differ by configuration (``checkpoint``), not by class.

Read in this order: ``decoder`` (it needs layers and attention only), ``latent`` (products around latent attention),
``reloading`` (its weights leave memory and come back).
"""
