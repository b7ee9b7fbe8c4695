"""How large a pool of workers should be: pure decisions; acting on them is the autoscaler's part.

Read in this order: ``fleet_sum``, ``observation``, ``demand``, ``planner``, ``zero`` (0 <-> 1), ``external_metrics``
(numbers for other scalers), ``settings``.
"""
