"""Placement as pure functions: which workers may run a request, which one should, and how long each request waits."""
