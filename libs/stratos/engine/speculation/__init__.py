"""Speculative decoding: n-gram and draft-model proposers and the verifier will live here."""
