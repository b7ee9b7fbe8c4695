"""A folder served by the part of S3's protocol that ``S3Store`` speaks: pods share it without sharing a volume.

Read in this order: ``signature`` (who sent a request), ``server``.
"""
