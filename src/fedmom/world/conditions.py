"""The parts of a world, taken together: what becomes of clients that are asked."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedmom.algorithms.forms import Form
from fedmom.algorithms.workload import Workload
from fedmom.core.arguments import short
from fedmom.core.errors import FedMomError
from fedmom.core.registry import joined
from fedmom.core.types import SIMULATED
from fedmom.world import WORLDS
from fedmom.world.base import Clients, Draws, Moment, Task, Truths, Values, World

ROUND = 60.0  # simulated seconds of a round in a world in which nothing takes time


class Outcomes(NamedTuple):
    """What becomes of clients that are asked: when, and why no reply comes ("": one does)."""

    seconds: Values  # after they were asked
    reasons: list[str]


@dataclass(frozen=True)
class Conditions:
    """The parts of a world, each with its random numbers.

    Args:
        parts: The parts.
        seed: The run's seed.
        bytes_down: What a client receives.
        bytes_up: What it sends back.
        batch_size: Samples per step; None: all that a client has.
    """

    parts: tuple[World, ...]
    seed: int
    bytes_down: int
    bytes_up: int
    batch_size: int | None

    @property
    def drawn(self) -> list[tuple[World, Draws]]:
        """The parts with their draws; a second part of a name has others than the first."""
        seen: Counter[str] = Counter()
        found = []
        for part in self.parts:
            found.append((part, Draws(self.seed, f"{part.name}/{seen[part.name]}")))
            seen[part.name] += 1
        return found

    @property
    def has_times(self) -> bool:
        """Whether some replies come before others."""
        return any(part.seconds for part in self.parts)

    @property
    def has_availability(self) -> bool:
        """Whether clients may be away."""
        return any(part.available for part in self.parts)

    @property
    def changes_steps(self) -> bool:
        """Whether clients may take fewer steps than they are asked for."""
        return any(part.steps or part.shortens for part in self.parts)

    @property
    def reweighs(self) -> float:
        """The largest factor by which replies are divided by their probability; 0: they are not."""
        return max((part.reweighs for part in self.parts), default=0.0)

    @property
    def pause(self) -> float:
        """Simulated seconds before every round."""
        timed = self.has_times or any(part.name == "pause" or part.pause for part in self.parts)
        return sum(part.pause for part in self.parts) if timed else ROUND

    @property
    def deadline(self) -> float:
        """Simulated seconds after which a reply does not count."""
        return min((p.deadline for p in self.parts if p.deadline is not None), default=math.inf)

    @property
    def least(self) -> int:
        """The fewest replies that a round uses."""
        return max((part.least for part in self.parts), default=0)

    def check_chances(self) -> None:
        """Refuse to reweigh where a reply's probability is not known, or 0 for some clients."""
        silent = [p.name for p in self.parts if (p.available or p.drops) and p.chance is None]
        silent += [p.name for p in self.parts if not p.keeps_partial]
        silent += [p.name for p in self.parts if p.deadline is not None and not p.shortens]
        if silent:
            raise FedMomError(
                f"reweighed divides replies by their probability, which {silent[0]} does not state"
                " or makes 0 for some clients. Leave one of the two out."
            )

    def available(self, moment: Moment, clients: Clients) -> Truths:
        """Return who is there."""
        there = np.ones(len(clients), bool)
        for part, draws in self.drawn:
            if part.available is not None:
                there &= np.asarray(part.available(draws, moment, clients), bool)
        return there

    def chance(self, moment: Moment, clients: Clients, present: bool | None = None) -> Values:
        """Return the probability that clients are there and reply, but for their speed.

        Args:
            moment: When they are asked.
            clients: Their numbers.
            present: Only that they are there, or only that they reply if they are.
        """
        chance = np.ones(len(clients))
        for part, draws in self.drawn:
            counts = present in (None, part.available is not None)
            if counts and part.chance is not None:
                chance = chance * part.chance(draws, moment, clients)
        return chance

    def seconds(self, round_: int, task: Task) -> Values:
        """Return how long clients take."""
        total = np.zeros(len(task.clients))
        for part, draws in self.drawn:
            if part.seconds is not None:
                total = total + part.seconds(draws, round_, task)
        return total

    def task(self, clients: Clients, samples: Clients, steps: Clients) -> Task:
        """Return what clients are asked to do."""
        batch = samples if self.batch_size is None else np.full(len(clients), self.batch_size)
        return Task(clients, samples, steps, batch, self.bytes_down, self.bytes_up)

    def shortened(self, round_: int, task: Task) -> Clients:
        """Return the steps that clients take."""
        steps = task.steps
        for part, draws in self.drawn:
            if part.steps is not None:
                done = np.asarray(part.steps(draws, round_, task._replace(steps=steps)), np.int64)
                steps = np.clip(done, 1, steps)
        if any(part.shortens for part in self.parts) and self.deadline < math.inf:
            whole = self.seconds(round_, task._replace(steps=steps))
            without = self.seconds(round_, task._replace(steps=np.zeros_like(steps)))
            left, needed = self.deadline - without, np.maximum(whole - without, 1e-300)
            in_time = np.floor(np.clip(steps * (left / needed), 1, steps)).astype(np.int64)
            steps = np.where(whole > self.deadline, in_time, steps)
        return steps

    def outcomes(self, moment: Moment, task: Task) -> Outcomes:
        """Return what becomes of clients that are asked at a moment."""
        clients, round_ = task.clients, moment.round
        steps = self.shortened(round_, task) if self.changes_steps else task.steps
        seconds = self.seconds(round_, task._replace(steps=steps))
        reasons = np.full(len(clients), "", object)
        if not all(part.keeps_partial for part in self.parts):
            reasons[steps < task.steps] = SIMULATED + "it took fewer steps"
        for part, draws in self.drawn:
            if part.drops is not None:
                after = np.asarray(part.drops(draws, round_, clients), np.float64)
                reasons[after < 1] = SIMULATED + "it dropped out"
                seconds = seconds * np.minimum(after, 1)
        # The clock of the simulation has rounding errors; a reply at the deadline is in time.
        late = seconds > self.deadline * (1 + 1e-9)
        seconds = np.where(late, self.deadline, seconds)
        reasons[late] = f"{SIMULATED}it missed the deadline of {self.deadline:g} s"
        if self.has_availability:
            seconds, reasons = self._gone(moment, clients, seconds, reasons)
        return Outcomes(seconds, reasons.tolist())

    def _gone(self, moment: Moment, clients: Clients, seconds: Values, reasons: Any) -> Any:
        """Note who is not there, or will have gone when its reply is due."""
        away = ~self.available(moment, clients)
        if (seconds > 0).any():
            then = moment._replace(seconds=moment.seconds + seconds)
            gone = ~self.available(then, clients) & (reasons == "")
            reasons[gone] = SIMULATED + "it went offline"
        reasons[away] = SIMULATED + "it was not there"
        return np.where(away, 0.0, seconds), reasons


@dataclass(frozen=True)
class Limit:
    """The steps that a client takes of its H: ``LocalWork.limit`` of a run in a world."""

    conditions: Conditions

    def __call__(self, round_: int, client: int, samples: int, steps: int) -> int:
        """Return the steps."""
        numbers = (np.array([n], np.int64) for n in (client, samples, steps))
        return int(self.conditions.shortened(round_, self.conditions.task(*numbers))[0])


def parts_of(world: World | Sequence[World] | str) -> tuple[World, ...]:
    """Return the parts of a world: itself, several, or those that a text joins by +."""
    if isinstance(world, str):
        return tuple(WORLDS.build(part) for part in joined(world))
    parts = (world,) if isinstance(world, World) else tuple(world)
    if wrong := [part for part in parts if not isinstance(part, World)]:
        raise FedMomError(f"world has {short(wrong[0])}. Its parts must be of type fedmom.World.")
    return parts


def conditions_of(parts: Sequence[World], workload: Workload) -> Conditions:
    """Return the parts of a world, with what they need to know of a run."""
    broadcast = workload.broadcast_form()
    sent = Form.of(workload.method.forms(broadcast)[-1])
    down, batch = Form.of(broadcast).bytes, workload.work.batch_size
    return Conditions(tuple(parts), workload.seed, down, sent.bytes, batch)
