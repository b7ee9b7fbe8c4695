"""``stratos reproduce``: runs rows of published claims one by one, keeps their documents, renders the report.

Read in this order: ``documents`` (the file that is state and result), ``running`` (rows in processes of their own),
``cells`` (texts of both renderers), ``markdown``, ``html``, ``report`` (all files of a report), ``command``.
"""
