"""Background responses: streams without a client, which any gateway takes from their tenants' queues.

Read in this order: ``runs`` (how they are computed), ``responses`` (how their clients find and end them).
"""
