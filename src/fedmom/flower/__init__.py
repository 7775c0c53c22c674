"""FedMom with Flower: the two ends of a deployed run, and strategies for existing apps.

``server_app`` and ``client_app`` are what ``fedmom deploy init`` writes into an app. ``FedMom`` and
``FedAvg`` are strategies for your own Flower app (docs/deploy.md). All of it
needs the extra: ``pip install 'fedmom[flower]'``.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedmom.flower.device import client_app
    from fedmom.flower.server import server_app
    from fedmom.flower.strategy import FedAvg, FedMom

__all__ = ["FedAvg", "FedMom", "client_app", "server_app"]

_HOMES = {
    "FedAvg": "strategy",
    "FedMom": "strategy",
    "client_app": "device",
    "server_app": "server",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedmom.flower' has no attribute {name!r}")
    return getattr(importlib.import_module(f"fedmom.flower.{_HOMES[name]}"), name)
