"""How processes of Flower's apps end, and how that is told to the API that they worked for."""

import signal
from typing import Any


def how_it_ended(code: int) -> str:
    """Return how a process ended, in words.

    Args:
        code: Its exit code, negative for a signal.

    Examples:
        >>> how_it_ended(-9)
        'its process was killed by SIGKILL, perhaps for lack of memory'
    """
    if code >= 0:
        return f"its process ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    why = ", perhaps for lack of memory" if -code == signal.SIGKILL else ""
    return f"its process was killed by {name}{why}"


def tell_failed(address: str, token: str, details: str, root: bytes | None = None) -> None:
    """Tell a Runtime API, in place of an app that has ended without a word, that it failed.

    Args:
        address: The API's.
        token: The app's.
        details: Why it failed.
        root: The CA's certificate; without it, TLS is not used.
    """
    from flwr.common.constant import SubStatus
    from flwr.proto.runtime_pb2 import PushTaskOutputRequest
    from flwr.supercore.interceptors import (
        RuntimeTokenHttpInterceptor,
        RuntimeVersionHttpInterceptor,
    )
    from flwr.supercore.runtime import RuntimeHttpClient

    interceptors: list[Any] = [
        RuntimeVersionHttpInterceptor(component_name="SuperExec"),
        RuntimeTokenHttpInterceptor(token),
    ]
    client = RuntimeHttpClient.from_server_address(address, root is None, root, interceptors)
    try:
        client.PushTaskOutput(PushTaskOutputRequest(sub_status=SubStatus.FAILED, details=details))
    finally:
        client.close()
