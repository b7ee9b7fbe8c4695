"""A Kubernetes cluster as end-to-end tests see it: kubectl, helm, and commands that the caller names.

In this order: ``settings`` (what the tests are told), ``commands`` (kubectl, and waiting), ``report`` (the figures).
"""
