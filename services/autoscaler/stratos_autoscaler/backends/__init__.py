"""What starts and drains workers."""
