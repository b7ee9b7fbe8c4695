"""Runners execute step plans; ``base`` holds the contract, ``torch_runner`` the real one."""
