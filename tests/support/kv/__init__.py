"""Both ends of a KV transfer, and faults between them."""
