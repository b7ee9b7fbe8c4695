"""The decode-worker service: ``stratos.worker`` with the role that receives KV and samples."""
