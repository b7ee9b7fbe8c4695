"""A Helm release in a cluster, as ``stratos chaos --kube`` breaks it.

Read in this order: ``api`` (calls to the API server, with the rights of who runs the command), ``channels`` (programs
and connections in pods, through it), ``release`` (pods by their names here), ``on_node`` (a program that runs beside a
pod, on its node) over ``node_pods``, ``leaving`` (evictions), ``cluster_faults``, ``rights``, ``admin`` (keys),
``cluster_target`` (all of it).
"""
