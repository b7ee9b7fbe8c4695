"""Alerts, each with its runbook. Read in this order: ``alert`` (the record), then the tables, then ``table``."""
