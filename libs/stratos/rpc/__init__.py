"""gRPC for services: the lifecycle of a process, errors on the wire, clients.

``__main__`` of a service is ``sys.exit(serve(lambda: MyService(settings), settings))`` with
``settings = load_settings(MySettings)``.
"""

from stratos.rpc.binding import StartError
from stratos.rpc.client import channel, is_serving, wait_serving
from stratos.rpc.errors import from_error_detail, to_error_detail, translate_errors
from stratos.rpc.process import serve, serve_async
from stratos.rpc.service import Service
from stratos.rpc.settings import InvalidSettings, ServiceSettings, load_settings

__all__ = [
    "InvalidSettings",
    "Service",
    "ServiceSettings",
    "StartError",
    "channel",
    "from_error_detail",
    "is_serving",
    "load_settings",
    "serve",
    "serve_async",
    "to_error_detail",
    "translate_errors",
    "wait_serving",
]
