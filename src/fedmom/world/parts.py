"""The built-in parts of worlds."""

import math
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from scipy.special import ndtri

from fedmom.core.arguments import checked
from fedmom.core.errors import FedMomError
from fedmom.core.files import user_path
from fedmom.core.validation import Between
from fedmom.world import traces
from fedmom.world.base import Clients, Draws, Moment, Task, Truths, Values, World

Share = Annotated[float, Between(0, 1)]
Positive = Annotated[float, Between(1e-9, 1e12)]
Seconds = Annotated[float, Between(0, 1e12)]
Spread = Annotated[float, Between(0, 10)]
Distribution = Literal["lognormal", "uniform", "exponential", "constant"]
MEGABIT = 1e6 / 8  # bytes


@checked
def online(*, share: Share = 0.5, spread: Share = 0.0) -> World:
    """Each client is there with a probability of its own, in every round anew.

    Args:
        share: The mean probability.
        spread: The clients' probabilities are uniform in share ± spread.

    Returns:
        A part of a world.

    Examples:
        >>> world = online(share=0.4, spread=0.2)
        >>> there = world.available(Draws(0, "online"), Moment(0, 0.0), np.arange(10_000))
        >>> bool(0.38 < there.mean() < 0.42)
        True
    """
    if not 0 <= share - spread <= share + spread <= 1:
        raise FedMomError(
            f"online: share={share} with spread={spread} is not within [0, 1]. Use a smaller"
            " spread."
        )

    def chance(draws: Draws, _moment: Moment, clients: Clients) -> Values:
        return share + spread * (2 * draws.uniform(clients, use="share") - 1)

    def available(draws: Draws, moment: Moment, clients: Clients) -> Truths:
        return draws.uniform(clients, moment.round) < chance(draws, moment, clients)

    return World("online", available, chance)


@checked
def diurnal(
    *,
    low: Share = 0.05,
    high: Share = 0.5,
    zones: Annotated[int, Between(1, 24)] = 1,
    peak: Annotated[float, Between(0, 24)] = 2.0,
    period: Positive = 86_400.0,
) -> World:
    """A day/night curve: the share of clients that are there is a cosine of the time of day.

    A client is there once a day, around the peak of its time zone, for a time that is drawn anew
    each day.

    Args:
        low: The share at the lowest point of the day.
        high: The share at the peak.
        zones: Time zones, an hour apart, with equally many clients.
        peak: The hour of the peak in the first zone, of 24. The run begins at hour 0.
        period: Simulated seconds in a day.

    Returns:
        A part of a world.

    Examples:
        >>> world = diurnal(low=0.1, high=0.3)
        >>> at_two = world.chance(Draws(0, "diurnal"), Moment(0, 2 * 3600.0), np.arange(3))
        >>> at_two.round(6).tolist()
        [0.3, 0.3, 0.3]
    """
    if low > high:
        raise FedMomError(f"diurnal: low={low} is more than high={high}. Exchange them.")

    def days(draws: Draws, moment: Moment, clients: Clients) -> Values:
        """Return the time since the first peak of each client, in days."""
        zone = np.floor(draws.uniform(clients, use="zone") * zones)
        return np.asarray(moment.seconds / period - (peak + zone) / 24)

    def chance(draws: Draws, moment: Moment, clients: Clients) -> Values:
        wave = (1 + np.cos(2 * math.pi * days(draws, moment, clients))) / 2
        return np.asarray(low + (high - low) * wave)

    def available(draws: Draws, moment: Moment, clients: Clients) -> Truths:
        day = np.floor(days(draws, moment, clients) + 0.5)  # from one low point to the next
        return draws.uniform(clients, day.astype(np.int64)) < chance(draws, moment, clients)

    return World("diurnal", available, chance)


@checked
def outages(
    *,
    share: Share = 0.05,
    groups: Annotated[int, Between(1, 10**6)] = 10,
    seconds: Positive = 3600.0,
) -> World:
    """Correlated outages: all clients of a group are away at once.

    Args:
        share: The share of the time that a group is away.
        groups: How many groups there are, such as regions or networks.
        seconds: Simulated seconds of an outage; a group is drawn anew after each such time.

    Returns:
        A part of a world.

    Examples:
        >>> world = outages(share=0.5, groups=1)
        >>> there = world.available(Draws(0, "outages"), Moment(0, 0.0), np.arange(100))
        >>> bool(there.all() or not there.any())
        True
    """

    def chance(_draws: Draws, _moment: Moment, clients: Clients) -> Values:
        return np.full(len(clients), 1 - share)

    def available(draws: Draws, moment: Moment, clients: Clients) -> Truths:
        group = np.floor(draws.uniform(clients, use="group") * groups).astype(np.int64)
        slot = np.floor(np.asarray(moment.seconds) / seconds).astype(np.int64)
        return draws.uniform(group, slot, "away") >= share

    return World("outages", available, chance)


@checked
def trace(*, file: str | Path, period: Seconds = 0.0) -> World:
    """Clients are there when a file says so: CSV with client,start,end, or FedScale's traces.

    Client k of the population follows client k mod n of a trace of n.

    Args:
        file: A CSV file with a line per interval, in seconds; or FedScale's
            ``client_behave_trace``, saved as JSON.
        period: Seconds after which the trace repeats; 0: at its last end. FedScale's traces have
            their own.

    Returns:
        A part of a world.

    Examples:
        >>> import tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "trace.csv"
        >>> _ = path.write_text("client,start,end\\n0,0,60\\n1,60,120\\n")
        >>> world = trace(file=path)
        >>> world.available(Draws(0, "trace"), Moment(0, 70.0), np.arange(2)).tolist()
        [False, True]
    """
    found = traces.availability(user_path(file, "file"), period)

    def available(_draws: Draws, moment: Moment, clients: Clients) -> Truths:
        return found.at(moment.seconds, clients)

    return World("trace", available)


@checked
def speed(
    *,
    median: Positive = 100.0,
    spread: Spread = 0.5,
    distribution: Distribution = "lognormal",
    jitter: Spread = 0.0,
) -> World:
    """How fast clients compute, in samples per second.

    Args:
        median: The median over clients.
        spread: Of the clients: σ of the logarithm if lognormal, half the width as a share of the
            median if uniform.
        distribution: Of the clients: lognormal, uniform, exponential or constant.
        jitter: σ of the logarithm of a client's time from round to round.

    Returns:
        A part of a world.

    Examples:
        >>> one = np.ones(1, np.int64)
        >>> task = Task(one, 90 * one, steps=10 * one, batch=5 * one, bytes_down=0, bytes_up=0)
        >>> speed(median=25, spread=0).seconds(Draws(0, "speed"), 0, task).tolist()
        [2.0]
    """
    _check_distribution("speed", distribution, spread)

    def seconds(draws: Draws, round_: int, task: Task) -> Values:
        rate = _drawn(draws.uniform(task.clients, use="rate"), distribution, median, spread)
        varies = np.exp(jitter * ndtri(draws.uniform(task.clients, round_))) if jitter else 1.0
        return np.asarray(task.steps * task.batch / rate * varies)

    return World("speed", seconds=seconds)


@checked
def network(
    *,
    down: Positive = 20.0,
    up: Positive = 5.0,
    spread: Spread = 0.5,
    distribution: Distribution = "lognormal",
    latency: Seconds = 0.0,
) -> World:
    """How fast clients receive and send, in megabits per second.

    Args:
        down: The median downlink over clients.
        up: The median uplink.
        spread: As of ``speed``; downlink and uplink are drawn independently.
        distribution: As of ``speed``.
        latency: Seconds that every reply takes besides.

    Returns:
        A part of a world.

    Examples:
        >>> one = np.ones(1, np.int64)
        >>> task = Task(one, one, one, one, bytes_down=10**6, bytes_up=10**6)
        >>> network(down=8, up=2, spread=0).seconds(Draws(0, "network"), 0, task).tolist()
        [5.0]
    """
    _check_distribution("network", distribution, spread)

    def seconds(draws: Draws, _round: int, task: Task) -> Values:
        rates = (
            _drawn(draws.uniform(task.clients, use=use), distribution, median * MEGABIT, spread)
            for use, median in (("down", down), ("up", up))
        )
        received, sent = (
            size / rate for size, rate in zip((task.bytes_down, task.bytes_up), rates, strict=True)
        )
        return np.asarray(received + sent + latency)

    return World("network", seconds=seconds)


@checked
def capacity(*, file: str | Path) -> World:
    """How fast clients compute, receive and send, from a file.

    Client k of the population is as fast as client k mod n of a file of n.

    Args:
        file: A CSV file with the columns samples_per_second, down and up (megabits per second);
            or FedScale's ``client_device_capacity``, saved as JSON, whose ``computation`` is
            milliseconds per sample of inference, a third of training, and whose
            ``communication`` is kilobits (of 1,024 bits) per second both ways.

    Returns:
        A part of a world.

    Examples:
        >>> import tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "fast.csv"
        >>> _ = path.write_text("samples_per_second,down,up\\n25,8,2\\n")
        >>> one = np.ones(1, np.int64)
        >>> task = Task(one, one, 10 * one, 5 * one, bytes_down=10**6, bytes_up=10**6)
        >>> capacity(file=path).seconds(Draws(0, "capacity"), 0, task).tolist()
        [7.0]
    """
    found = traces.capacities(user_path(file, "file"))

    def seconds(_draws: Draws, _round: int, task: Task) -> Values:
        rate, down, up = found[:, task.clients % found.shape[1]]
        computed = task.steps * task.batch / rate
        return np.asarray(computed + (task.bytes_down / down + task.bytes_up / up) / MEGABIT)

    return World("capacity", seconds=seconds)


@checked
def pause(*, seconds: Seconds = 60.0) -> World:
    """Simulated seconds before every round, such as the server needs.

    Args:
        seconds: How many. A world in which nothing takes time has 60.

    Returns:
        A part of a world.

    Examples:
        >>> pause(seconds=120).pause
        120
    """
    return World("pause", pause=seconds)


@checked
def dropout(*, rate: Share = 0.1) -> World:
    """Clients that were asked drop out while they train, at random.

    Args:
        rate: The probability, for every client in every round.

    Returns:
        A part of a world.

    Examples:
        >>> after = dropout(rate=0.3).drops(Draws(0, "dropout"), 0, np.arange(10_000))
        >>> bool(0.28 < (after < 1).mean() < 0.32)
        True
    """

    def drops(draws: Draws, round_: int, clients: Clients) -> Values:
        falls = draws.uniform(clients, round_) < rate
        return np.where(falls, draws.uniform(clients, round_, "when"), np.inf)

    def chance(_draws: Draws, _moment: Moment, clients: Clients) -> Values:
        return np.full(len(clients), 1 - rate)

    return World("dropout", chance=chance, drops=drops)


@checked
def partial(*, share: Share = 0.5, replies: Literal["kept", "dropped"] = "kept") -> World:
    """FedProx's stragglers: a share of the clients takes some of its steps only.

    Args:
        share: The share, drawn in every round anew. Their steps are uniform in 1 to H.
        replies: Whether what they did counts, as in FedProx, or is dropped.

    Returns:
        A part of a world.

    Examples:
        >>> one = np.ones(1000, np.int64)
        >>> task = Task(np.arange(1000), one, steps=10 * one, batch=one, bytes_down=8, bytes_up=8)
        >>> taken = partial(share=1.0).steps(Draws(0, "partial"), 0, task)
        >>> int(taken.min()), int(taken.max())
        (1, 10)
    """

    def steps(draws: Draws, round_: int, task: Task) -> Clients:
        slow = draws.uniform(task.clients, round_) < share
        some = 1 + np.floor(draws.uniform(task.clients, round_, "steps") * task.steps)
        return np.where(slow, some.astype(np.int64), task.steps)

    return World("partial", steps=steps, keeps_partial=replies == "kept")


@checked
def deadline(
    *,
    seconds: Positive | None = None,
    late: Literal["dropped", "shortened"] = "dropped",
    least: Annotated[int, Between(0, 2**31 - 1)] = 0,
) -> World:
    """A time after which replies do not count, and the replies that a round needs.

    A round with fewer replies than it needs is recorded and takes no step; the next one takes its
    place.

    Args:
        seconds: Simulated seconds after a client was asked; by default there is no deadline.
        late: What becomes of slow clients: their replies are dropped, or they take fewer steps to
            be in time.
        least: The fewest replies that a round uses.

    Returns:
        A part of a world.

    Examples:
        >>> deadline(seconds=90, least=3).least
        3
    """
    return World("deadline", deadline=seconds, shortens=late == "shortened", least=least)


@checked
def reweighed(*, most: Annotated[float, Between(1, 1e6)] = 10.0) -> World:
    """Divide replies by the probability that they come: fast and present clients count less.

    The probabilities are those that the other parts of the world state, relative to their mean
    over clients that reply. Where replies of slow clients are dropped, they include that of being
    among the first. What never replies cannot be made up for.

    Args:
        most: The largest factor; without a limit, a rare reply would outweigh all others.

    Returns:
        A part of a world.

    Examples:
        >>> reweighed(most=5).reweighs
        5
    """
    return World("reweighed", reweighs=most)


def _check_distribution(name: str, distribution: str, spread: float) -> None:
    if distribution == "uniform" and not spread < 1:
        raise FedMomError(f"{name}: spread={spread} must be less than 1 if uniform.")


def _drawn(uniform: Values, distribution: str, median: float, spread: float) -> Values:
    """Return the quantiles of a distribution with this median."""
    if distribution == "lognormal":
        factor = np.exp(spread * ndtri(uniform))
    elif distribution == "uniform":
        factor = 1 + spread * (2 * uniform - 1)
    elif distribution == "exponential":
        factor = -np.log1p(-uniform) / math.log(2)
    else:
        factor = np.ones_like(uniform)
    return np.asarray(median * factor)
