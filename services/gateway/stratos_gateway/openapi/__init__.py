"""The OpenAPI document of this API, and a page that shows it without any network.

``openapi.json`` is written by ``python -m scripts.openapi.generate`` from what the parsers read; read ``routes`` next.
"""
