"""Backups of what is in Redis alone, in an object store: ``backup_store``."""
