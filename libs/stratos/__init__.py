"""The libraries of StratosServe. Read in this order:

``common`` (errors, clock, ids) and ``api`` (generated stubs of protos/), ``core`` (the records of a request),
``text`` (tokenizer, chat template, stop strings), ``engine`` (computes tokens), ``kv_transfer`` (carries KV
between workers), ``worker`` (what both worker services are made of), ``routing`` and ``planning`` (pure decisions),
``sim`` (fleets under a virtual clock), ``store`` (Redis, objects), ``rpc`` (how a service runs), ``pki`` (a CA and
its certificates), ``observe`` (dashboards, rules, alerts), ``selfcheck`` (checks of a running platform), ``cli`` (the
``stratos`` command and its local supervisor).
"""
