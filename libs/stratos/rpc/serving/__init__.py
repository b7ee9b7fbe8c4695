"""The one lifecycle of every service process.

Read in this order: ``service`` (what a service says of itself), ``process`` (signals, exit code), ``lifecycle``,
``heap`` (the collector of cycles), ``server``, ``interceptors`` (errors at the edge), ``probes``, ``embedded_http``,
``parent``, ``address_file``.
"""
