"""Generated from protos/stratos/api/lora/v1; never edited."""
