"""Backends that start and drain workers. Read in this order: ``base`` (the contract), ``local``, ``kubernetes``."""
