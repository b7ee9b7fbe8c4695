"""Formats of quantised layers: what their configurations say without torch, and readers of their tensors."""
