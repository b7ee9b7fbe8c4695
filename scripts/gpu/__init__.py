"""What ``gpu_check.py`` measures, one module per section; each runs in a process of its own."""
