"""Who starts and drains workers."""
