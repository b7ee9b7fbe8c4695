"""What processes say about devices and their memory without touching one: facts, payloads, the checksum of payloads."""
