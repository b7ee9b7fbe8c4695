"""/v1/moderations: what the tenant's own content policy says of texts, in OpenAI's form; nothing is refused for it.

Read in this order: ``requests`` (bodies), ``route`` (verdicts and answers).
"""
