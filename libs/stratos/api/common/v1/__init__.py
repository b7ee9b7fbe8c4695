"""Generated from protos/stratos/api/common/v1; never edited."""
