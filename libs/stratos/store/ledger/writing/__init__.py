"""Writing of entries: each once, many in one script.

Read in this order: ``entry_script`` (one entry, once), ``entry_writer``.
"""
