"""Generated from protos/stratos/api/router/v1; never edited."""
