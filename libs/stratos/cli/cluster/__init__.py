"""Commands that jobs and pods of a release in a cluster run.

Read in this order: ``credentials`` (a Secret that is made once), ``commands``.
"""
