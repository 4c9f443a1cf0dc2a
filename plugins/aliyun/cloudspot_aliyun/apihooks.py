"""Reports the control plane's API calls one by one, because the SDK has no hooks for this."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cloudspot.plugin.apirecording import ApiExchange, is_observed, report

if TYPE_CHECKING:
    from aliyunsdkcore.request import RpcRequest


@contextmanager
def reported(request: RpcRequest) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Report a request with the response that the block hands over, or the SDK's error that it raises."""
    if not is_observed():
        yield lambda _answer: None
        return
    from aliyunsdkcore.acs_exception.exceptions import ClientException, ServerException

    answers: list[Mapping[str, Any]] = []
    # The fields that the SDK adds when it signs, such as the key's id, are left out.
    parameters = nested({**request.get_query_params(), **request.get_body_params()})
    began = time.monotonic()
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
        report(
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


def nested(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return flat parameters such as ``Tag.1.Key`` as lists and tables."""
    whole: dict[str, Any] = {}
    for name, value in parameters.items():
        *way, last = name.split(".")
        place = whole
        for part in way:
            place = place.setdefault(part, {})
        place[last] = value
    return {name: _with_lists(one) for name, one in whole.items()}


def _with_lists(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if all(name.isdecimal() for name in value):
        return [_with_lists(value[name]) for name in sorted(value, key=int)]
    return {name: _with_lists(one) for name, one in value.items()}
