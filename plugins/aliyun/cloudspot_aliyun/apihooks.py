"""Tells of the control plane's answers one by one, as its SDK has no hooks of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cloudspot.plugin.apirecording import ApiExchange, is_observed, tell

if TYPE_CHECKING:
    from aliyunsdkcore.request import RpcRequest


@contextmanager
def told(request: RpcRequest) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Tell of a request: of the answer that the block hands over, or of the SDK's error that it raises."""
    if not is_observed():
        yield lambda _answer: None
        return
    from aliyunsdkcore.acs_exception.exceptions import ClientException, ServerException

    answers: list[Mapping[str, Any]] = []
    # What the SDK adds when it signs, the key's id among it, belongs to no request.
    parameters, began = dict(request.get_query_params()), time.monotonic()
    status, code = 200, ""
    try:
        yield answers.append
    except ServerException as error:
        status, code = int(error.get_http_status() or 0), str(error.get_error_code())
        raise
    except ClientException as error:
        status, code = 0, str(error.get_error_code())
        raise
    finally:
        tell(
            ApiExchange(
                service=str(request.get_product()).lower(),
                action=str(request.get_action_name()),
                request=parameters,
                answer=answers[0] if answers else None,
                status=status,
                code=code,
                seconds=time.monotonic() - began,
            )
        )
