"""The shipped model behind the defaults of ``stratos up``."""
