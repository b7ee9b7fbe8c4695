"""Generated from protos/stratos/api/gateway; never edited."""
