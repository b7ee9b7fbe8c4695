"""The chart, its objects, and clusters."""
