"""Commands of ``stratos`` in groups of their own; each parses arguments and calls one function.

Read in this order: ``shared`` (options and errors of all commands), ``flags`` (fields of a record as flags), ``access``
(keys and tenants), ``money`` (statements and costs), ``stores.admin`` (the store), ``tenancy`` (plans and tenants),
``certificates``, ``models``, ``bench`` (load), ``trace``.
"""
