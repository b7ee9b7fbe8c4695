"""The registry of base models: published versions in the object store, named by what they hold.

    registry/chunks/<SHA-256 of it>                                32 MiB of a file; revisions share equal ones
    registry/models/<name>/-/<digest of the model>/<SHA-256>.json  manifest of a revision, written last

Read in this order: ``manifest`` (a revision: files, chunks, facts), ``catalogue`` (which there are), ``publishing``
(put one there), ``fetching`` (stream one to a folder), ``node_cache`` (the folder that processes of a node share).
"""
