"""Generated from protos/stratos/api/kv; never edited."""
