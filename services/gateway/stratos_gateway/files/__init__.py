"""Files of tenants: uploaded in parts and checked line by line, kept sealed in the object store, read in ranges.

Read in this order: ``multipart`` (the form of an upload), ``lines`` (what a line of a batch must be), ``upload``,
``routes``, ``settings``.
"""
