"""What the content of a tenant's requests and answers goes through.

Read in this order: ``settings``, ``source`` (policies and templates that are known), ``prompts`` (a request's prompt
from a template), ``classifier`` (asks one over HTTP), ``screen`` (a request's texts), ``choice_screen`` and ``output``
(what a generation says, whole or as it comes), ``gate`` (which screen a tenant has).
"""
