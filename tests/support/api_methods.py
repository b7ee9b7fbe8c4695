"""Every method of the internal API, by its full name."""

from __future__ import annotations

import importlib
import pkgutil

from google.protobuf.descriptor import MethodDescriptor

import stratos.api


def service_methods() -> dict[str, MethodDescriptor]:
    """By full name: every method of the generated stubs."""
    found = {}
    for module in pkgutil.walk_packages(stratos.api.__path__, "stratos.api."):
        if module.name.endswith("_pb2"):
            file = importlib.import_module(module.name).DESCRIPTOR
            for service in file.services_by_name.values():
                found |= {f"/{service.full_name}/{method.name}": method for method in service.methods}
    return found


METHODS = service_methods()
