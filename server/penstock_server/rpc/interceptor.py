"""Turns exceptions into gRPC statuses, in one place. An unexpected one is logged once and becomes INTERNAL."""

import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from penstock_server.base.errors import PenstockError
from penstock_server.rpc.statuses import code_of

logger = logging.getLogger(__name__)


class ErrorInterceptor(grpc.ServerInterceptor):
    """Wraps every method of the service."""

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        handler = continuation(details)
        if handler is None:
            return None
        if handler.unary_unary:
            return handler._replace(unary_unary=_guard_unary(handler.unary_unary))
        if handler.unary_stream:
            return handler._replace(unary_stream=_guard_stream(handler.unary_stream))
        return handler._replace(stream_stream=_guard_stream(handler.stream_stream))


def _guard_unary(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def guarded(request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return method(request, context)
        except Exception as error:
            _abort(context, error)

    return guarded


def _guard_stream(method: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    @functools.wraps(method)
    def guarded(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        try:
            yield from method(request, context)
        except Exception as error:
            _abort(context, error)

    return guarded


def _abort(context: grpc.ServicerContext, error: Exception) -> None:
    if isinstance(error, PenstockError):
        context.abort(grpc.StatusCode[code_of(error).name], str(error))
    if not context.is_active():
        return  # the client is gone, which gRPC reports by an exception of no particular class
    logger.exception("unexpected error in a call")
    context.abort(
        grpc.StatusCode.INTERNAL, f"unexpected {type(error).__name__}; the shard's log has the details"
    )
