"""Words and patterns in a text, whole or as it arrives.

Read in this order: ``shipped_rules`` (what comes with the platform), ``rules`` (a policy's rules, compiled), ``window``
(the same verdict on a text in pieces).
"""
