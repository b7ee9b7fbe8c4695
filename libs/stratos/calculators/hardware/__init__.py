"""Devices and their prices per hour: tables with sources.

Read in this order: ``devices``, ``prices``.
"""
