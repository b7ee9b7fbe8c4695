"""Speculation: tokens are drafted cheaply and verified by the target, several in one pass.

A drafted token counts if and only if the target draws it there itself, with the same noise: so the stream is the one
without drafts, bit for bit.  Acceptance is part of retiring a step, so the step's tracker has it.

Read in this order: ``proposer`` (who drafts), ``ngram``, ``suffix``, ``model_draft``, ``making``, ``draft_lengths``
(what drafts are worth), ``drafting`` (the drafts of a step), ``planner`` (which rows get drafts, and their blocks).
"""
