"""The lora-registry service: adapter names and content-addressed versions, checked at registration."""
