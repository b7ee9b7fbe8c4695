"""Records of a reproduced row: what was claimed, what its inputs give, what came out here. Pure.

Read in this order: ``claim`` (a quoted claim), ``answer`` (our figures beside it, and the verdict by rule),
``result`` (all that a row found), ``conditions`` (how it ran).
"""
