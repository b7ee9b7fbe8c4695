"""Placement as pure functions: who may run a request, who should, and who waits for how long."""
