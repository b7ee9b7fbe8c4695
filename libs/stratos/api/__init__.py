"""Generated from protos/stratos/api; never edited."""
