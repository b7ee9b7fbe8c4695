"""Generated from protos/stratos/api/kv/v1; never edited."""
