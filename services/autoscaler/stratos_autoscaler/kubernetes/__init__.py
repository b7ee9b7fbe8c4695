"""The autoscaler and a cluster's API server, by the official client (package ``kubernetes``).

Read in this order: ``settings``, ``api`` (calls and watches), ``informer`` (a collection that is kept current),
``lease`` (who acts), ``workloads`` (Deployments and their pods).
"""
