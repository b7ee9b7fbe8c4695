"""Models: configuration, checkpoint reader and the one decoder definition."""
