"""Sampling: ``sampler`` is the pipeline, the other modules its stages."""
