"""Generated from protos/stratos/api/lora; never edited."""
