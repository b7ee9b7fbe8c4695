"""Stand-ins for one process or device each."""
