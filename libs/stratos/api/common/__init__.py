"""Generated from protos/stratos/api/common; never edited."""
