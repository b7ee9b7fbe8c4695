"""Generated from protos/stratos/api/worker/v1; never edited."""
