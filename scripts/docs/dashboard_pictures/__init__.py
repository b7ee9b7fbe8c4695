"""Pictures of dashboards as plain SVG.

Read in this order: ``series`` (what is drawn), ``panel``, ``page``.
"""
