"""How large a pool of workers should be: pure decisions; acting on them is the autoscaler's part.

Read in this order: ``observation``, ``demand``, ``planner``, ``settings``.
"""
