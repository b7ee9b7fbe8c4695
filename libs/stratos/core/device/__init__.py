"""What processes say about devices and their memory without touching one.

Read in this order: ``facts``, ``checksum`` (of payloads in a device's memory).
"""
