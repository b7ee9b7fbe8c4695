"""Registration of one adapter.

Steps: check name, tenant and digest -> ask Redis for a sign of life and the time -> fetch the two files into a folder
of our own -> check them with the rules that workers use too -> point the name to it.  Nothing is stored before the
last step, and the folder is gone at the end.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge

from stratos.common.errors import BadRequest, DependencyDown, InvalidAdapter, Overloaded, RequestTooLarge
from stratos.core.adapter import Adapter
from stratos.core.files.adapter_config import CONFIG_NAME
from stratos.core.files.adapter_files import WEIGHTS_NAME, AdapterFiles, read_adapter_files
from stratos.core.files.digest import is_digest
from stratos.store.keys import check_tenant
from stratos.store.object_store import ObjectStore, check_key
from stratos_lora_registry.catalogue import AdapterCatalogue

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}\Z")
_MAX_CONFIG_BYTES = 1 << 20
"""It is read into memory as a whole."""
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrarConfig:
    """Bounds of a registration."""

    reserved_names: tuple[str, ...] = ("base",)
    """Names no adapter may take, because clients use them for base models."""
    max_adapter_bytes: Annotated[int, Ge(1)] = 2 * 1024**3
    """Largest adapter: rank 256 on every projection of an 8 B model in bf16 stays below."""
    max_registrations: Annotated[int, Ge(1)] = 4
    """Registrations that read weights at the same time; more are refused, since each takes disk and bandwidth."""
    work_folder: Path | None = None
    """Where weights lie while they are checked; unset takes the system's folder for temporary files."""


class Registrar:
    """Checks adapters and adds them to the catalogue.

    Args:
        catalogue: where versions are kept.
        store: where weights are.
        config: bounds.
        unix_time: seconds since the epoch.
    """

    def __init__(
        self,
        catalogue: AdapterCatalogue,
        store: ObjectStore,
        config: RegistrarConfig,
        unix_time: Callable[[], float],
    ) -> None:
        self._catalogue = catalogue
        self._store = store
        self._config = config
        self._unix_time = unix_time
        self._num_running = 0

    async def register(self, *, tenant: str, name: str, base_model_digest: str, uri: str, digest: str = "") -> Adapter:
        """Check the adapter at ``uri`` and point ``name`` to it; the same content gives the same answer.

        A ``digest`` that is given is that of a version that the name goes back to, and its files must have it.

        Raises:
            BadRequest: name, tenant, digest or URI is malformed, the name is reserved, or a later registration of it
                has ended already.
            NotFound: no such folder, or the tenant is being deleted, or was since.
            InvalidAdapter: its files are not an adapter we serve, or have another digest.
            Overloaded: too many registrations run.
            DependencyDown: Redis or the object store does not answer.
        """
        self._check(tenant, name, base_model_digest)
        uri = check_key(uri)
        if self._num_running >= self._config.max_registrations:
            raise Overloaded(f"{self._num_running} adapters are being registered; try again shortly")
        self._num_running += 1
        try:
            registration = await self._catalogue.begin(tenant)
            await self._catalogue.check_name(name)
            files = await self._read(uri)
            if digest not in ("", files.digest):
                raise InvalidAdapter(f"{uri} holds other content by now: its digest is {files.digest}", param="digest")
            await self._catalogue.check_name(name)  # reading takes its time, in which a model may have been added
            return await self._catalogue.put(
                Adapter(
                    tenant=tenant,
                    name=name,
                    base_model_digest=base_model_digest,
                    uri=uri,
                    digest=files.digest,
                    rank=files.rank,
                    alpha=files.alpha,
                    target_modules=files.target_modules,
                    num_bytes=files.num_bytes,
                    created_unix_s=int(self._unix_time()),
                    is_rolled_back=bool(digest),
                ),
                registration,
            )
        finally:
            self._num_running -= 1

    def _check(self, tenant: str, name: str, base_model_digest: str) -> None:
        if tenant:
            check_tenant(tenant)
        if not _NAME.match(name):
            raise BadRequest(
                "an adapter's name has 1 to 64 characters of a-z 0-9 . _ - and starts with a letter or digit",
                param="name",
            )
        if name in self._config.reserved_names:
            raise BadRequest(f"the name {name!r} is the base model's; choose another one", param="name")
        if not is_digest(base_model_digest):
            raise BadRequest("base_model_digest must be a SHA-256 as 64 hex digits", param="base_model_digest")

    async def _read(self, uri: str) -> AdapterFiles:
        await self._check_folder(uri)
        try:
            with tempfile.TemporaryDirectory(prefix="stratos-adapter-", dir=self._config.work_folder) as work:
                return await self._read_in(Path(work) / "adapter", uri)
        except OSError as error:
            raise DependencyDown(f"{uri} cannot be read on this registry's disk: {error.strerror or error}") from error

    async def _read_in(self, folder: Path, uri: str) -> AdapterFiles:
        try:
            await self._store.download_folder(
                uri, folder, names=(CONFIG_NAME, WEIGHTS_NAME), max_bytes=self._config.max_adapter_bytes
            )
        except RequestTooLarge as error:
            raise InvalidAdapter(f"{uri}: the adapter is too large: {error.message}", param="uri") from error
        try:
            return await asyncio.to_thread(read_adapter_files, folder)
        except InvalidAdapter as error:
            # The reader names the folder of ours; callers know the one in the store.
            message = error.message.replace(str(folder), uri)
            raise InvalidAdapter(f"{uri}: {message}", param="uri") from error

    async def _check_folder(self, uri: str) -> None:
        try:
            found = {info.key[len(uri) + 1 :]: info.num_bytes for info in await self._store.list_folder(uri)}
        except RequestTooLarge as error:
            raise InvalidAdapter(f"{uri} is not an adapter folder: {error.message}", param="uri") from error
        if WEIGHTS_NAME not in found:
            pickles = sorted(name for name in found if name.endswith(_PICKLES))
            why = f"; {pickles[0]} is a pickle and is never read: convert it to safetensors" if pickles else ""
            raise InvalidAdapter(f"{uri} has no {WEIGHTS_NAME}{why}", param="uri")
        if CONFIG_NAME not in found:
            raise InvalidAdapter(f"{uri} has no {CONFIG_NAME}", param="uri")
        if found[CONFIG_NAME] > _MAX_CONFIG_BYTES:
            raise InvalidAdapter(f"{uri}: {CONFIG_NAME} is larger than {_MAX_CONFIG_BYTES} bytes", param="uri")
