"""LoRA: ``host_copy`` (read, checked), ``weights`` (laid out), ``store`` (residency), ``batch`` (use in a step)."""
