"""Metrics, PromQL and alerts as tests read them."""
