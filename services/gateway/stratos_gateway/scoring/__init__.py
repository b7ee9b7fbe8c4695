"""/v1/score and /v1/rerank: documents judged by a decoder that answers yes or no.

Read in this order: ``requests`` (bodies), ``dialects`` (the same pass as generations), ``sending`` (log probabilities
of both words), ``answers``.
"""
