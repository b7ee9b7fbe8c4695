"""The client: sends what is planned when it is planned, and notes times.

Read in this order: ``sse`` (events of a stream), ``target`` (the server),
``http_connection``,
``http_sender`` (one request), ``pacing`` (open and closed loops),
``health`` (whether the client kept up), ``run`` (a whole run).
"""
