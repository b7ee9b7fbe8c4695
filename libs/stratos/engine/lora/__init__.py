"""LoRA adapters: read and checked, kept on the host and on the device, applied to some rows of a step.

Read in this order: ``store`` (residency), ``host_copy`` (read, checked), ``weights`` (laid out), ``batch`` (in a step).
"""
