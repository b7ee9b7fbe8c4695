"""Generated from protos/stratos/api/worker; never edited."""
