"""LoRA: ``weights`` (one adapter, checked against the model), ``store`` (residency), ``batch`` (use in a step)."""
