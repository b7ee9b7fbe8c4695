"""Generated from protos/stratos/api/keda/v1; never edited."""
