"""The text files of models in the object store, each set in a folder named by its digest.

catalogue/models/<digest of the text files>/config.json, tokenizer.json, ...
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
from collections import Counter
from collections.abc import Set
from pathlib import Path
from weakref import WeakValueDictionary

from stratos.common.errors import InvalidCheckpoint
from stratos.core.files.model_files import CONFIG_NAME
from stratos.core.files.model_texts import MAX_TEXT_BYTES, text_digest, text_names
from stratos.store.object_store import ObjectStore

FOLDER = "catalogue/models"
_GONE = ".gone-"


class AlteredWords(InvalidCheckpoint):
    """The store has other files than their digest says: some are not to be seen yet, or they were altered."""


async def put_texts(objects: ObjectStore, model: Path) -> str:
    """Store the text files of a model folder; returns their digest.

    The configuration goes last: a set without it is none, so one that is half there is never taken.

    Raises:
        InvalidCheckpoint: it is no model folder.
        DependencyDown: the store does not answer.
    """
    digest = await asyncio.to_thread(text_digest, model)
    for name in sorted(text_names(model), key=lambda name: name == CONFIG_NAME):
        await objects.put(text_key(digest, name), model / name)
    return digest


def text_key(digest: str, name: str) -> str:
    """Where a text file of a set lies in the object store."""
    return f"{FOLDER}/{digest}/{name}"


class TextFolders:
    """Text files of models on the disk, by digest; what the store gave is checked before it is used.

    Args:
        objects: where they come from; ``None`` has what is on the disk alone.
        folder: where they are kept; it is made.
    """

    def __init__(self, objects: ObjectStore | None, folder: Path) -> None:
        self._objects = objects
        self._folder = folder
        self._fetched_now: Counter[str] = Counter()
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Turns of those who want the same words: else one deletes what another one reads."""

    async def fetch(self, digest: str) -> Path:
        """A folder with the text files of a digest.

        Raises:
            AlteredWords: the files are others than their digest says.
            InvalidCheckpoint: there is no store, and they are not on the disk.
            NotFound: the store has none of this digest.
            DependencyDown: the store does not answer.
        """
        turn = self._turns.setdefault(digest, asyncio.Lock())
        async with turn:
            return await self._fetch(digest)

    async def _fetch(self, digest: str) -> Path:
        path = self._folder / digest
        if path.is_dir() and await asyncio.to_thread(_is_whole, path, digest):
            return path
        if self._objects is None:
            raise InvalidCheckpoint(
                "its tokenizer is in an object store, and this gateway has none (OBJECT_STORE__URL)"
            )
        await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)
        self._fetched_now[digest] += 1
        try:
            await self._objects.download_folder(f"{FOLDER}/{digest}", path, max_bytes=MAX_TEXT_BYTES)
        finally:
            self._fetched_now -= Counter([digest])
        if not await asyncio.to_thread(_is_whole, path, digest):
            await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)
            raise AlteredWords(f"the files at {FOLDER}/{digest} in the object store have another digest")
        return path

    async def keep(self, digests: Set[str]) -> None:
        """Delete all others, and what fetches left that ended with their process."""
        gone = []
        for path in list(self._folder.iterdir()) if self._folder.is_dir() else ():
            if path.name.startswith("."):
                if path.name.split(".")[1] not in self._fetched_now:
                    gone.append(path)
            elif path.name not in digests:
                gone.append(path.rename(self._folder / f"{_GONE}{secrets.token_hex(4)}"))
        for path in gone:
            await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)


def _is_whole(path: Path, digest: str) -> bool:
    try:
        return text_digest(path) == digest
    except (InvalidCheckpoint, OSError):
        return False
