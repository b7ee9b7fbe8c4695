"""Generated from protos/stratos/api/keda; never edited."""
