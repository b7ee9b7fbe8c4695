"""Blocks on a Ray cluster: the only place of the project that imports ``ray``, which comes with the extra of its name.

Ray gives three things: where engines run, that lost ones are replaced, and how many there are.  Lines and results do
not pass through it, they are in the store of the job.

Read in this order: ``connection`` (which cluster, and whether it may be trusted), ``actor`` (an engine there),
``pool`` (blocks as a dataset).
"""
