"""Faults, streams and reports of the chaos suite."""
