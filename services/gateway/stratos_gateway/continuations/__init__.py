"""Answers that ended before their time go on: a token with the end of one, and its redemption with the same request.

Read in this order: ``settings``, ``codec`` (what is in a token), ``tokens`` (how it is sealed), ``binding`` (which
request it is of), ``step`` (one redemption), ``returns`` (what failed without a client).
"""
