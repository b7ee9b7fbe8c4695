"""Content policies and prompt templates as JSON and back: ``forms``."""
