"""Generated from protos/stratos/api/supervisor/v1; never edited."""
