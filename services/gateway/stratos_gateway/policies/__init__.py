"""Content policies and prompt templates of tenants.

Read in this order: ``settings``, ``source`` (policies and templates that are known), ``prompts`` (a request's prompt
from a template), ``classifier`` (asks one over HTTP), ``screen`` (a request's texts), ``choice_screen`` and ``output``
(a generation's output, whole or as it comes), ``step`` (around a request).
"""
