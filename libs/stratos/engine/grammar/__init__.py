"""Structured output: grammars compiled once, a matcher per sequence, token masks per step. Never imports torch.

Read in this order: ``compiler``, ``matcher``, ``forced_tokens``, ``masks``.
"""
