"""Facts about devices and their memory, stated without touching one.

Read in this order: ``facts``, ``payload``, ``checksum`` (of payloads in a device's memory).
"""
