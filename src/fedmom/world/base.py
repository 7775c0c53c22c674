"""A world's parts: pure functions of (seed, round, client), and what they compute with."""

import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedmom.core.arguments import checked_class
from fedmom.core.prng import hashed_uniform

Clients = NDArray[np.int64]
Values = NDArray[np.float64]
Truths = NDArray[np.bool_]


class Draws(NamedTuple):
    """Random numbers of one part of a world. Each is a hash, so that none has to be kept.

    Args:
        seed: The run's seed.
        name: Tells the part from the others of its world.

    Examples:
        >>> draws = Draws(seed=0, name="dropout")
        >>> clients = np.arange(1000)
        >>> each_round = draws.uniform(clients, round_=3)
        >>> bool((each_round[[7]] == draws.uniform(clients[[7]], round_=3)).all())
        True
    """

    seed: int
    name: str

    def uniform(self, clients: Any, round_: Any = 0, use: str = "") -> Values:
        """Return a number in (0, 1) for every client.

        Args:
            clients: Their numbers.
            round_: The round, or another whole number; always the same one gives each client a
                number for good.
            use: Tells numbers apart that are drawn for different ends.
        """
        return hashed_uniform(self.seed, zlib.crc32(f"{self.name}/{use}".encode()), round_, clients)


class Moment(NamedTuple):
    """When clients are looked at.

    Args:
        round: The round in which they are asked, counted from 0.
        seconds: The simulated time, one number or one for every client.

    Examples:
        >>> Moment(round=3, seconds=360.0).seconds
        360.0
    """

    round: int
    seconds: float | Values


class Task(NamedTuple):
    """What clients are asked to do in a round.

    Args:
        clients: Their numbers.
        samples: n_k of each.
        steps: H of each.
        batch: Samples per step, of each.
        bytes_down: What each receives.
        bytes_up: What each sends back.

    Examples:
        >>> one = np.ones(1, np.int64)
        >>> task = Task(one, 20 * one, steps=10 * one, batch=5 * one, bytes_down=8, bytes_up=8)
        >>> (task.steps * task.batch).tolist()  # samples that it goes through
        [50]
    """

    clients: Clients
    samples: Clients
    steps: Clients
    batch: Clients
    bytes_down: int
    bytes_up: int


@checked_class
class World(NamedTuple):
    """A part of a simulated world. Each function has an entry per client; None: as without.

    Args:
        name: Its name.
        available: ``available(draws, moment, clients)``: who is there. A client that is no longer
            there when its reply would come has gone offline.
        chance: ``chance(draws, moment, clients)``: the probability that a client is there and
            replies, as far as this part decides. ``reweighed`` needs it.
        seconds: ``seconds(draws, round_, task)``: what the part adds to the time of a reply.
        steps: ``steps(draws, round_, task)``: the steps that clients take of ``task.steps``.
        drops: ``drops(draws, round_, clients)``: the share of its time after which a client drops
            out; 1 or more: it does not.
        pause: Simulated seconds before every round.
        deadline: Simulated seconds after which a reply does not count.
        shortens: Clients that would miss the deadline do fewer steps, to meet it.
        keeps_partial: Whether replies count that took fewer steps.
        least: Fewer replies than this are not used, and the round counts as failed.
        reweighs: The largest factor by which replies are divided by their probability; 0: they
            are not.

    Examples:
        Clients with odd numbers take twice as many seconds:

        >>> world = World("odd", seconds=lambda draws, round_, task: 30.0 * (1 + task.clients % 2))
        >>> one = np.ones(2, np.int64)
        >>> task = Task(np.array([4, 7]), one, one, one, 8, 8)
        >>> world.seconds(Draws(0, "odd"), 0, task).tolist()
        [30.0, 60.0]
    """

    name: str
    available: Callable[[Draws, Moment, Clients], Truths] | None = None
    chance: Callable[[Draws, Moment, Clients], Values] | None = None
    seconds: Callable[[Draws, int, Task], Values] | None = None
    steps: Callable[[Draws, int, Task], Clients] | None = None
    drops: Callable[[Draws, int, Clients], Values] | None = None
    pause: float = 0.0
    deadline: float | None = None
    shortens: bool = False
    keeps_partial: bool = True
    least: int = 0
    reweighs: float = 0.0
