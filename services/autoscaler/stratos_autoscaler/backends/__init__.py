"""What starts and drains workers. Read in this order: ``base`` (the contract), ``local``, ``observer``."""
