"""Models and adapters that rows make for themselves."""
