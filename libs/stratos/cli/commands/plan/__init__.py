"""``stratos plan``: calculators on the command line.

Read in this order: ``shared`` (options and output of all), ``memory``, ``speed``, ``money``, ``app``,
``group`` (loads ``app`` when it is asked for).
"""
