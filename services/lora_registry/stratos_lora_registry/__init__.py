"""The lora-registry service: adapter names and content-addressed versions, checked at registration.

Read in this order: ``registrar`` (what a registration does), ``catalogue`` (Redis), ``servicer``, ``service``,
``settings``.
"""
