"""Every error that crosses a service boundary, in one tree.

    StratosError
    ├── Retryable(after_s)          the same call may succeed later
    │   ├── Overloaded              503 overloaded           system full
    │   ├── QueueTimeout            503 queue_timeout        waited too long for a placement
    │   ├── WaitTooLong             503 wait_too_long        would wait longer than it wants to here (internal)
    │   ├── Draining                503 draining             the process is leaving
    │   ├── Busy                    503 busy                 no room for KV; ask for a new placement (internal)
    │   ├── AdapterUnavailable      503 adapter_unavailable  weights cannot be loaded now
    │   ├── FeatureUnavailable      503 feature_unavailable  no worker, or not this one, offers what is asked for
    │   ├── DependencyDown          503 dependency_unavailable  Redis or the object store is down
    │   ├── ContentCheckDown        503 content_check_unavailable  the tenant's content policy cannot be checked
    │   ├── ResponseStoreDown       503 response_store_unavailable  stored responses can be neither read nor kept now
    │   ├── StreamMoved             503 stream_moved         it goes on at another gateway
    │   ├── WorkerLost              503 worker_lost          a peer went away in mid-call (internal)
    │   ├── RateLimited             429 rate_limit_exceeded
    │   └── ConcurrencyLimited      429 concurrency_limit
    └── Permanent                   the same call will fail again
        ├── BadRequest              400 invalid_request or a specific code, ``param`` set
        ├── ContextLengthExceeded   400 context_length_exceeded
        ├── ContentRefused          400 content_filter       the tenant's content policy has a hit
        ├── InvalidAdapter          400 invalid_adapter
        ├── InvalidApiKey           401 invalid_api_key
        ├── PermissionDenied        403 permission_denied
        ├── ModelNotFound           404 model_not_found
        ├── NotFound                404 not_found
        ├── PromptNotFound          404 prompt_not_found     no such template, or version of it
        ├── StreamGone              410 stream_gone          its record is kept no more
        ├── StreamCancelled         410 stream_cancelled     its client ended it for good
        ├── KeyReused               422 idempotency_key_reused  the same key with another body
        ├── (continuation_errors)   400, 410, 422            of continuation tokens
        ├── BodyTimeout             408 request_timeout      the body came too slowly; SDKs send it again
        ├── RequestTooLarge         413 request_too_large
        ├── UnsupportedEncoding     415 unsupported_content_encoding
        ├── InsufficientQuota       429 insufficient_quota
        ├── RequestOverRate         429 request_over_rate_limit  needs more at once than the plan ever allows
        ├── InvalidCheckpoint       500 invalid_checkpoint   a process refuses to start (internal)
        ├── AdapterMismatch         503 adapter_mismatch     digest differs from what was resolved (internal)
        ├── PeerRefused             500 peer_refused         a process of ours lacks the role for a call (internal)
        ├── IdentityMismatch        500 identity_mismatch    KV of another identity (internal)
        └── Internal                500 internal_error       a bug

Each class holds its HTTP status, gRPC code name, machine code and OpenAI error type as data, and where its messages may
name our processes, stores or other tenants' load, the text that clients read instead.
"""

from __future__ import annotations

from typing import ClassVar


class StratosError(Exception):
    """Base of all errors of the platform.

    Args:
        message: text for a person; must not hold prompt text, secrets or tracebacks.
        param: offending request parameter, if any.
        after_s: seconds after which a retry makes sense, if it does.
    """

    http_status: ClassVar[int] = 500
    grpc_code: ClassVar[str] = "INTERNAL"
    code: str = "internal_error"
    type: ClassVar[str] = "server_error"
    public_text: ClassVar[str] = ""
    """Text for clients in place of the message, which is for operators; empty: the message itself."""

    def __init__(self, message: str = "", *, param: str | None = None, after_s: float | None = None) -> None:
        super().__init__(message or type(self).__name__)
        self.message = message or type(self).__name__
        self.param = param
        self.after_s = after_s
        self.is_from_peer = False
        """Another process raised it: ``param`` names a field of our messages, not one of a client's request."""
        self.queue_samples: tuple[int, ...] = ()
        """Where the refused request stood in a router's queue: pairs of milliseconds of its call, and requests that
        were before it then; the last pair is of the decision."""


class Retryable(StratosError):
    """The same call may succeed later."""

    http_status = 503
    grpc_code = "UNAVAILABLE"
    code = "overloaded"
    default_after_s: ClassVar[float] = 1.0

    def __init__(self, message: str = "", *, param: str | None = None, after_s: float | None = None) -> None:
        super().__init__(message, param=param, after_s=self.default_after_s if after_s is None else after_s)


class Overloaded(Retryable):
    """The system is full.

    Args:
        message, param, after_s: as of ``StratosError``.
        reason: why; empty where no bound of ours was reached.
    """

    grpc_code = "RESOURCE_EXHAUSTED"
    public_text = "the platform is full; try again later"

    def __init__(
        self, message: str = "", *, param: str | None = None, after_s: float | None = None, reason: str = ""
    ) -> None:
        super().__init__(message, param=param, after_s=after_s)
        self.reason = reason


class QueueTimeout(Retryable):
    """No placement within the queue's time to live."""

    grpc_code = "DEADLINE_EXCEEDED"
    code = "queue_timeout"
    public_text = "there was no room for this request in time; try again later"


class WaitTooLong(Retryable):
    """The router expects a longer wait than the request wants to have before it goes outside the platform."""

    grpc_code = "RESOURCE_EXHAUSTED"
    code = "wait_too_long"
    public_text = "there was no room for this request in time; try again later"


class DeadlinePassed(Retryable):
    """The request's own time is over, while it waited or in the middle of its answer."""

    grpc_code = "DEADLINE_EXCEEDED"
    code = "deadline_exceeded"
    public_text = "the request's deadline passed before its answer was complete"


class PromptRefused(Retryable):
    """Workers were lost as this tenant's prompt began there."""

    grpc_code = "RESOURCE_EXHAUSTED"
    code = "prompt_refused"
    public_text = "workers were lost as this prompt began there; it is refused for some minutes"


class Draining(Retryable):
    """The process is leaving."""

    code = "draining"
    public_text = "this server is leaving; try again"


class Busy(Retryable):
    """A decode worker has no room for the KV; the request goes back to the head of its queue."""

    grpc_code = "RESOURCE_EXHAUSTED"
    code = "busy"
    public_text = "the platform could not finish this request now; try again"


class AdapterUnavailable(Retryable):
    """The adapter's weights cannot be loaded now."""

    code = "adapter_unavailable"
    public_text = "the adapter cannot be loaded now; try again"


class FeatureUnavailable(Retryable):
    """A worker, or every worker of a model, lacks something that the request needs: a fleet in mid-upgrade."""

    code = "feature_unavailable"
    default_after_s = 5.0


class DependencyDown(Retryable):
    """Redis or the object store does not answer."""

    code = "dependency_unavailable"
    public_text = "a service that this request needs does not answer now; try again later"


class ResponseStoreDown(Retryable):
    """Stored responses can be neither read nor kept now; requests without ``store`` need none."""

    code = "response_store_unavailable"
    public_text = (
        "stored responses can be neither read nor kept now; try again later, or send store: false and all items"
    )


class StreamMoved(Retryable):
    """Another gateway has taken the stream over."""

    code = "stream_moved"
    public_text = "this stream goes on elsewhere; resume it with the id of the last event"


class ContentCheckDown(Retryable):
    """A text cannot be checked as its tenant's policy wants, and the policy lets nothing pass unchecked."""

    code = "content_check_unavailable"
    public_text = "the content policy cannot be checked now; try again later"


class WorkerLost(Retryable):
    """A peer went away in the middle of a call."""

    code = "worker_lost"
    public_text = "the platform could not finish this request now; try again"


class RateLimited(Retryable):
    """The tenant's own rate bucket is empty."""

    http_status = 429
    grpc_code = "RESOURCE_EXHAUSTED"
    code = "rate_limit_exceeded"
    type = "rate_limit_error"


class ConcurrencyLimited(RateLimited):
    """The tenant has too many requests open."""

    code = "concurrency_limit"


class Permanent(StratosError):
    """The same call will fail again."""


class BadRequest(Permanent):
    """A parameter is malformed, unsupported or out of range."""

    http_status = 400
    grpc_code = "INVALID_ARGUMENT"
    code = "invalid_request"
    type = "invalid_request_error"

    def __init__(self, message: str = "", *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message, param=param)
        if code is not None:
            self.code = code


class ContextLengthExceeded(BadRequest):
    """The prompt is over the input limit, or could never fit."""

    code = "context_length_exceeded"


class ContentRefused(BadRequest):
    """The tenant's content policy has a hit in the request."""

    code = "content_filter"


class InvalidAdapter(BadRequest):
    """An adapter's files are broken, unsupported or do not fit the base model."""

    code = "invalid_adapter"


class InvalidApiKey(Permanent):
    """No API key, or one that is not known."""

    http_status = 401
    grpc_code = "UNAUTHENTICATED"
    code = "invalid_api_key"
    type = "authentication_error"


class PermissionDenied(Permanent):
    """The key lacks the right."""

    http_status = 403
    grpc_code = "PERMISSION_DENIED"
    code = "permission_denied"
    type = "permission_error"


class NotFound(Permanent):
    """No such thing."""

    http_status = 404
    grpc_code = "NOT_FOUND"
    code = "not_found"
    type = "invalid_request_error"


class ModelNotFound(NotFound):
    """No such model or adapter, or one of another tenant."""

    code = "model_not_found"


class PromptNotFound(NotFound):
    """The tenant has no such prompt template, or none of this version."""

    code = "prompt_not_found"


class StreamGone(Permanent):
    """The record of the stream is kept no more."""

    http_status = 410
    grpc_code = "NOT_FOUND"
    code = "stream_gone"
    type = "invalid_request_error"


class StreamCancelled(StreamGone):
    """The stream was cancelled by its tenant."""

    code = "stream_cancelled"


class KeyReused(Permanent):
    """An idempotency key came again with another body."""

    http_status = 422
    grpc_code = "INVALID_ARGUMENT"
    code = "idempotency_key_reused"
    type = "invalid_request_error"


class BodyTimeout(Permanent):
    """The body did not arrive in time; a client that repeats it is its own reason, so no time to wait is told."""

    http_status = 408
    grpc_code = "DEADLINE_EXCEEDED"
    code = "request_timeout"
    type = "invalid_request_error"


class RequestTooLarge(Permanent):
    """The body is over the size limit."""

    http_status = 413
    grpc_code = "INVALID_ARGUMENT"
    code = "request_too_large"
    type = "invalid_request_error"


class UnsupportedEncoding(Permanent):
    """The body is compressed."""

    http_status = 415
    grpc_code = "INVALID_ARGUMENT"
    code = "unsupported_content_encoding"
    type = "invalid_request_error"


class InsufficientQuota(Permanent):
    """The tenant's budget is spent."""

    http_status = 429
    grpc_code = "RESOURCE_EXHAUSTED"
    code = "insufficient_quota"
    type = "insufficient_quota"


class RequestOverRate(Permanent):
    """One request needs more than the tenant's plan allows at once."""

    http_status = 429
    grpc_code = "RESOURCE_EXHAUSTED"
    code = "request_over_rate_limit"
    type = "rate_limit_error"


class InvalidCheckpoint(Permanent):
    """A model folder cannot be served; the message says what to do."""

    grpc_code = "FAILED_PRECONDITION"
    code = "invalid_checkpoint"


class AdapterMismatch(Permanent):
    """The bytes in the object store are not the ones that were registered."""

    http_status = 503
    grpc_code = "FAILED_PRECONDITION"
    code = "adapter_mismatch"
    public_text = "the adapter's files are not the ones that were registered; register it again"


class IdentityMismatch(Permanent):
    """KV of another model, adapter, type or numerics."""

    grpc_code = "FAILED_PRECONDITION"
    code = "identity_mismatch"


class PeerRefused(Permanent):
    """A process called what its certificate gives it no right to: a wrong installation, or an intruder."""

    grpc_code = "PERMISSION_DENIED"
    code = "peer_refused"
    public_text = "the platform could not handle this request"


class Internal(Permanent):
    """A bug of ours; the details stay in the log."""
