"""Transport between two processes through memory of a GPU that one exports and the other maps.

Read in this order: ``memory`` (contract of a driver), ``lease`` (who may free, and when), ``receiver``,
``sender``, ``cuda`` (the driver).
"""
