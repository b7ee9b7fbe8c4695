"""Paged attention: ``backend`` is the contract and the factory, ``paged`` the pure torch kernel."""
