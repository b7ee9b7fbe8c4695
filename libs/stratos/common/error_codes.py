"""Machine codes of errors -> their classes, for what another process, or an HTTP answer, says of one."""

from __future__ import annotations

from stratos.common.errors import (
    BadRequest,
    BodyTimeout,
    Internal,
    InvalidApiKey,
    NotFound,
    Overloaded,
    Permanent,
    PermissionDenied,
    RateLimited,
    RequestTooLarge,
    Retryable,
    StratosError,
    UnsupportedEncoding,
)


def _walk(cls: type[StratosError]) -> list[type[StratosError]]:
    return [cls, *(found for child in cls.__subclasses__() for found in _walk(child))]


def error_classes() -> dict[str, type[StratosError]]:
    """Machine code -> class, for every concrete class of the tree."""
    abstract = (StratosError, Retryable, Permanent)
    return {cls.code: cls for cls in reversed(_walk(StratosError)) if cls not in abstract}


_FAMILIES: dict[int, type[StratosError]] = {
    400: BadRequest,
    401: InvalidApiKey,
    403: PermissionDenied,
    404: NotFound,
    408: BodyTimeout,
    413: RequestTooLarge,
    415: UnsupportedEncoding,
    429: RateLimited,
    503: Retryable,
}


def error_from_code(
    code: str,
    message: str,
    *,
    param: str | None = None,
    after_s: float | None = None,
    http_status: int | None = None,
    reason: str = "",
) -> StratosError:
    """Build the error that ``code`` names; an unknown code keeps its name and takes the class of ``http_status``.

    Without a known code or status it is ``Internal``.
    """
    known = error_classes().get(code)
    cls = known or _FAMILIES.get(http_status or 0, Internal)
    error = cls(message, param=param) if issubclass(cls, BadRequest) else cls(message, param=param, after_s=after_s)
    if known is None and cls is not Internal:
        error.code = code
    if isinstance(error, Overloaded):
        error.reason = reason
    return error
