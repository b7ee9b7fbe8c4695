"""What requests cost, from their end to the ledger; nothing of it is in a request's path but the check of a budget.

Read in this order: ``settings``, ``draft`` (what a request leaves at its end), ``meter`` (puts it together with what
workers counted), ``account`` (of one request), ``embedding``, ``writer`` (into Redis, or the spool), ``claims`` (counts
of gateways that died), ``budgets``, ``periods`` (of questions), ``responses`` (the response cache), ``replay``,
``billing`` (all of it).
"""
