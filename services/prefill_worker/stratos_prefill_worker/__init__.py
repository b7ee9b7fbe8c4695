"""The prefill-worker service: ``stratos.worker`` with the role that computes prompts and sends their KV."""
