"""Calls of the autoscaler to a cluster's API server: over httpx, since a handful of paths needs no generated client.

Read in this order: ``settings``, ``api`` (calls), ``lease`` (who acts), ``workloads`` (Deployments and their pods).
"""
