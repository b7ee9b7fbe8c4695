"""Generated from protos/stratos/api/autoscaler/v1; never edited."""
