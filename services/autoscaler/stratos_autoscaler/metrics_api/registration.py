"""Keeps the caBundle of the release's APIService equal to the CA that signed the API's certificate.

The certificates of a release are made after its objects, and their CA is replaced in time; Helm writes neither.
"""

from __future__ import annotations

import base64
import logging

from stratos.common.errors import DependencyDown
from stratos_autoscaler.kubernetes.api import MERGE_PATCH, ApiServer
from stratos_autoscaler.metrics_api.settings import MetricsApiConfig

_log = logging.getLogger(__name__)
API_SERVICES = "/apis/apiregistration.k8s.io/v1/apiservices"


async def keep_ca_bundle(api: ApiServer, config: MetricsApiConfig, namespace: str) -> None:
    """Write the CA into the APIService where it is another one.

    Raises:
        DependencyDown: there is no such APIService, or it names another Service: nothing is changed then.
        StratosError: as ``ApiServer.call``.
    """
    if not config.api_service or config.ca_path is None:
        return
    found = await api.read(f"{API_SERVICES}/{config.api_service}")
    spec = (found or {}).get("spec") or {}
    service = spec.get("service") or {}
    if (service.get("namespace"), service.get("name")) != (namespace, config.service_name):
        raise DependencyDown(f"the APIService {config.api_service} does not name {namespace}/{config.service_name}")
    bundle = base64.b64encode(config.ca_path.read_bytes()).decode()
    if spec.get("caBundle") == bundle:
        return
    patch = {"spec": {"caBundle": bundle}}
    await api.call("PATCH", f"{API_SERVICES}/{config.api_service}", patch, content_type=MERGE_PATCH)
    _log.info("the APIService %s has a new CA", config.api_service)
