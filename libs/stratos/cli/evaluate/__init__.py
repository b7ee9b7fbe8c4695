"""``stratos evaluate`` and ``stratos quantize``: ask a process with torch, and show its report.

Read in this order: ``table`` (the report as text), ``forest`` (losses and their intervals,
drawn), ``page`` (HTML), ``command``, ``quantising`` (the other command).
"""
