"""Meters of a worker's engine and of its device, beside the counts that ``stratos.worker.metrics`` copies.

What cannot be measured has no series: a GPU that is not there, a bandwidth whose peak is not known.
Read in this order: ``settings``, ``steps`` (every step's result), ``memory`` (what steps had to read), ``operations``
(what they computed), ``gpu`` (NVML, read when it is scraped), ``meters`` (all of them), ``device_series``.
"""
