"""Commands of ``stratos admin`` about the stores themselves: set up, copied, backed up, put back.

Read in this order: ``options`` (which stores), ``admin`` (set up, export, adopt), ``backups``,
``models`` (those that values name).
"""
