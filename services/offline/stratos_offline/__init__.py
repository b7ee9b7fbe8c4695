"""Files of batch requests that are computed away from a platform, by its own gateway and workers inside each engine.

``python -m stratos_offline`` is the driver, which ``stratos batch run`` starts.  It checks the file as the API does,
sorts its lines by their prefixes, cuts them into blocks, has a pool of engines compute the blocks, and puts the results
together in the order of the lines.  A block that is computed is an object of its own, so nothing is computed twice.

Read in this order: ``options``, ``prefixes``, ``lines`` (the file), ``blocks`` (its pieces, and their store),
``engines`` (what computes), ``pools`` (who computes which block, in local processes), ``cluster`` (the same on Ray; the
one place that imports it), ``results``, ``job`` (from file to files).
"""
