"""``stratos evaluate``: asks a process with torch to compare two models, and shows its report.

Read in this order: ``running`` (the process), ``table`` (the report as text), ``forest`` (losses and their intervals,
drawn), ``page`` (HTML), ``command``.
"""
