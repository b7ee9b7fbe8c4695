"""Objects that a Model should have, from its spec and from those of the chart.

Read in this order: ``sources`` (where models come from), ``spec`` (one Model, checked), ``templates`` and ``filling``
(the chart's objects, with words in place of values), ``sizes`` (bounds of pools), ``objects``.
"""
