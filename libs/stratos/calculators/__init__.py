"""Calculators behind ``stratos plan``: memory, speed and money of a platform, from formulas that print themselves.

Pure functions: a shape, devices and a question go in, a ``Sheet`` comes out.  Nothing is measured and nothing is
simulated; the autoscaler's decisions are those of ``stratos.planning``.

Read in this order: ``formula`` (text that is evaluated), ``sheet`` (the answer), ``bounds`` (refusals), ``tables``,
``models``, ``hardware``, ``published`` (others' answers to the same questions), ``memory``, ``speed``,
``money``, ``contradictions`` (published figures against their own inputs).
"""
