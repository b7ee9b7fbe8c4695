"""Tokens (JWT) of OpenID Connect issuers in the place of API keys.

Read in this order: ``settings`` (issuers), ``claims`` (claims -> tenant and role), ``key_set`` (an issuer's public
keys), ``fetching`` (from its address), ``issuer_keys`` (kept fresh beside the requests), ``token_check`` (the whole
check), ``credentials`` (an API key or a token).
"""
