"""Generated from protos/stratos/api/gateway/v1; never edited."""
