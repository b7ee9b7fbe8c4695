"""Generated from protos/stratos/api/autoscaler; never edited."""
