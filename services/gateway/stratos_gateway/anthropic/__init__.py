"""Anthropic's Messages API as a dialect: a parser, a renderer, and errors in its envelope; nothing here waits.

Read in this order: ``notices`` (fields that mean nothing here), ``content`` (messages and their blocks), ``tools``,
``requests`` (a body), ``blocks`` (the content of an answer), ``rendering`` (whole answers and streams), ``errors``.
"""
