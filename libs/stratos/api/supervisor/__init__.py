"""Generated from protos/stratos/api/supervisor; never edited."""
