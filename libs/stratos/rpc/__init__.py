"""gRPC for services: how a process is served, errors on the wire, clients of other services.

``__main__`` of a service is ``sys.exit(serve(lambda: MyService(settings), settings))`` with ``settings =
load_settings(MySettings)``.  Read in this order: ``settings``, ``serving`` (the lifecycle), ``errors``, ``clients``,
``codec`` (records of ``core`` as messages), ``forking`` (quick starts on one machine), ``tracing``, ``log``,
``instruments`` (tables of metrics), ``loop_instruments``, ``metrics``.
"""
