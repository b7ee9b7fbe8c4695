"""A Kubernetes cluster as end-to-end tests see it: kubectl, helm, and four commands that the caller names.

Read ``settings`` first: what the tests are told about the cluster. ``commands`` runs kubectl and helm, ``release`` is an
installed chart, ``client`` sends requests from a pod, ``report`` keeps the figures.
"""
