"""Generated from protos/stratos/api/router; never edited."""
