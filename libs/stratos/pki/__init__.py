"""Certificates for mTLS: made, renewed and checked; in a folder of this machine or in Secrets of a cluster.

Read in this order: ``authority`` (keys and signatures), ``renewal`` (what is due, and how one CA replaces another),
``stores`` and ``kubernetes_secrets`` (where they are kept), ``keeper`` (one run over a store), ``audit`` (``check``),
``local`` (a platform of this machine).
"""
