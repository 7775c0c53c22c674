"""Where clients live. A runtime is asked and answers in blocks; ``base`` says how."""

from fedmom.core.registry import Registry

RUNTIMES = Registry(
    "runtime",
    {
        "local": "fedmom.runtimes.local:local",
        "flower": "fedmom.runtimes.devices.runtime:flower",
    },
)
