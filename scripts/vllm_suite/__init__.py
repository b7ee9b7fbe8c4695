"""vLLM's own tests of its HTTP server, against vLLM's CPU build and against ours, with the same model."""
