"""Which replies count: who was asked, and what makes a reply unusable."""

import itertools
import math
from collections import deque
from collections.abc import Sequence, Set
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fedmom.algorithms.forms import Form
from fedmom.core.arguments import short
from fedmom.core.errors import BadReplyError, DivergedError, FedMomError
from fedmom.core.tracing import one_number
from fedmom.runtimes.base import Block, Failure, Runtime
from fedmom.runtimes.sums import finite_rows, norms_of
from fedmom.training.pace import Pace
from fedmom.training.reply_sizes import LIMIT, ReplySizes

if TYPE_CHECKING:
    from fedmom.training.aggregate import Collected

BadReplies = Literal["stop", "skip"]
ROUNDS_UNREAD = 10  # whose norms are looked at only if a step diverges


class Rejected(NamedTuple):
    """A client whose reply does not count, and why."""

    client: int
    reason: str


def members_of(block: Block) -> NDArray[np.int64]:
    """Return how many clients each row of a block stands for."""
    return np.ones(np.size(block.clients), np.int64) if block.members is None else block.members


def _numbers(values: Any, count: int) -> bool:
    """Return whether values are an array of ``count`` real numbers; truth is 0 or 1."""
    if getattr(values, "shape", None) != (count,):
        return False
    kind = values.dtype  # NumPy's own first: looking up JAX's takes longer than all the rest
    return kind in (np.float32, np.float64) or any(
        jnp.issubdtype(kind, k) for k in (jnp.floating, jnp.integer, jnp.bool_)
    )


def malformed(block: Block, form: Form) -> str:
    """Say what makes a whole block useless; nothing if it is well formed."""
    clients, samples = np.asarray(block.clients), np.asarray(block.samples)
    if clients.ndim != 1 or clients.dtype.kind not in "iu" or not len(clients):
        return f"its block names the clients {clients.tolist()!r}"
    if samples.shape != clients.shape or samples.dtype.kind not in "iu":
        return f"its block counts its samples as {samples.tolist()!r}"
    rows = len(clients)
    if block.members is not None:
        members = np.asarray(block.members)
        whole = members.ndim == 1 and members.dtype.kind in "iu"
        if not whole or (members < 1).any() or members.sum() != len(clients):
            return f"its block has groups of {members.tolist()} for {len(clients)} clients"
        rows = len(members)
    for name, given in {"loss": None, **block.metrics}.items():
        if not (isinstance(name, str) and _numbers(given, rows)):
            return f"its block does not have a {name} for each of {rows} rows"
    return form.fault(block.update, rows)


def rows_of(members: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the row of every client of a block."""
    return np.repeat(np.arange(len(members)), members)


def unusable(
    block: Block, samples: NDArray[np.int64], asked: Set[int]
) -> list[tuple[int, Rejected]]:
    """Return the clients of a well-formed block that cannot count, each with its place in it.

    Those that were summed with one of them come last.

    Args:
        block: Replies.
        samples: n_k of every client of the population.
        asked: The clients that were asked and have not answered.
    """
    faults: dict[int, str] = {}
    seen: set[int] = set()
    names = block.clients.tolist()
    for place, (client, claimed) in enumerate(zip(names, block.samples.tolist(), strict=True)):
        twice = "it answered twice" if client in seen else ""
        if reason := twice or _fault(client, claimed, samples, asked):
            faults[place] = reason
        seen.add(client)
    rows = rows_of(members_of(block)).tolist() if faults else []
    culprits = {rows[place]: names[place] for place in faults}
    for place, row in enumerate(rows):
        if row in culprits:
            faults.setdefault(place, f"it was summed with client {culprits[row]}")
    return [(place, Rejected(names[place], reason)) for place, reason in faults.items()]


def _fault(client: int, claimed: int, samples: NDArray[np.int64], asked: Set[int]) -> str:
    if not 0 <= client < len(samples):
        return f"there is no such client among {len(samples)}"
    if client not in asked:
        return "it was not asked, or has answered already"
    if claimed != samples[client]:
        return f"it claims {claimed} samples and has {samples[client]}"
    return ""


class Admitted(NamedTuple):
    """A block that counts, at least in part.

    ``members`` are the clients of each row, ``keep`` says which rows count, ``factor`` how much.
    """

    members: NDArray[np.int64]
    keep: NDArray[np.bool_]
    factor: float


class Admission:
    """Knows who was asked, and lets replies in or rejects them with a reason.

    Args:
        form: What updates must look like.
        runtime: Where the clients live; a restored one may know who was asked already.
        pace: What a stale reply counts, and when a round has enough.
        bad_replies: Whether a reply that cannot be used stops the run or is left out.
        norm_limit: How many times the median of the replies' norms a norm may be; 0: any. None: the
            usual limit, where each reply is looked at anyway.
    """

    def __init__(
        self,
        form: Form,
        runtime: Runtime,
        pace: Pace,
        bad_replies: BadReplies,
        norm_limit: float | None = None,
    ) -> None:
        self._form, self._pace, self._stop = form, pace, bad_replies == "stop"
        self._samples = runtime.workload.data.train.size
        self._asked = dict(runtime.under_way())
        # A sum reveals NaN for free. Checking each reply waits for it, so it is done only to leave
        # such a reply out, or where a rule would hide it.
        needed = runtime.workload.method.needs_rows or bool(norm_limit)
        self._look_at_each = not self._stop or needed
        limit = LIMIT if norm_limit is None else norm_limit
        self._sizes, self._limited = ReplySizes(limit), limit > 0
        self._unread: deque[Sequence[Any]] = deque(maxlen=ROUNDS_UNREAD)
        self.rejected: list[Rejected] = []
        self.replies = 0

    @property
    def holds(self) -> bool:
        """Whether replies of a round can be judged only when all are in, or after the step."""
        return self._look_at_each and not self._sizes.knows

    @property
    def busy(self) -> Set[int]:
        """The clients that were asked and have not answered."""
        return self._asked.keys()

    def begin(self, round_: int, clients: list[int]) -> None:
        """Note whom a new round asks."""
        self._asked |= dict.fromkeys(clients, round_)
        self.rejected, self.replies = [], 0

    def end(self) -> None:
        """Forget who has not answered, where late replies do not count."""
        if not self._pace.keeps_late:
            self._asked.clear()

    def fail(self, failure: Failure) -> None:
        """Note a client that will not answer."""
        self._forget([failure.client], failure.version)
        self.rejected.append(Rejected(failure.client, failure.reason))

    def admit(self, block: Block, round_: int) -> Admitted | None:
        """Check a block; return what of it counts, or None where nothing can."""
        fault = malformed(block, self._form)
        if fault:
            named = [c for c in np.ravel(block.clients).tolist() if isinstance(c, int)]
            self._forget(named, block.version)
            self._reject([Rejected(client, fault) for client in named or [-1]])
            return None
        factor = self._factor(block, round_)
        if not factor > 0:
            return None
        members = members_of(block)
        keep = self._usable(block, members)
        if self._look_at_each:
            norms = np.asarray(norms_of(block), float)
            self._leave_out_infinite(block, members, keep, round_, norms)
            self._leave_out_absurd(block, members, keep, norms)
        if not self._pace.keeps_late:  # also within a block, those after enough are dropped
            counts = np.where(keep, members, 0)
            before = self.replies + np.cumsum(counts) - counts
            keep &= [not self.enough(number) for number in before.tolist()]
        self.replies += int(members[keep].sum())
        return Admitted(members, keep, factor)

    def _factor(self, block: Block, round_: int) -> float:
        """Return the weight of a block for its age; 0: it does not count."""
        factor = self._weight(round_ - block.version) if block.version <= round_ else 0.0
        if factor > 0:
            return factor
        reason = f"it trained the model of round {block.version}, not of {round_}"
        rejected = [Rejected(client, reason) for client in block.clients.tolist()]
        if block.version > round_:
            self._reject(rejected)
        else:  # late is not bad: it does not stop a run
            self.rejected += rejected
        return 0.0

    def enough(self, replies: int) -> bool:
        """Return whether the pace has enough replies for a step."""
        found = self._pace.enough(replies)
        if not isinstance(found, bool | np.bool_):
            raise FedMomError(
                f"enough of the pace returns {short(found)}. It must be True or False."
            )
        return bool(found)

    def _weight(self, staleness: int) -> float:
        found = self._pace.weight(staleness)
        one_number("weight of the pace returns", found)
        if not 0 <= found < math.inf:
            raise FedMomError(f"weight of the pace returns {found}. It must be at least 0.")
        return found

    def _usable(self, block: Block, members: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return the rows whose clients may answer, and note that they have."""
        names = block.clients.tolist()
        asked = {client for client in names if self._asked.get(client) == block.version}
        found = unusable(block, self._samples, asked)
        self._reject([rejected for _, rejected in found])
        self._forget(names, block.version)
        keep = np.ones(len(members), bool)
        if found:
            keep[rows_of(members)[[place for place, _ in found]]] = False
        return keep

    def _leave_out_absurd(
        self,
        block: Block,
        members: NDArray[np.int64],
        keep: NDArray[np.bool_],
        norms: NDArray[np.float64],
    ) -> None:
        """Leave out what is absurdly large, where enough is known; remember the others."""
        if not self._sizes.knows:
            return
        absurd = self._sizes.absurd(norms) & keep
        for row in np.flatnonzero(absurd):
            end = int(members[: row + 1].sum())
            clients = block.clients[end - int(members[row]) : end].tolist()
            self._reject_large(clients, float(norms[row]))
        keep &= ~absurd
        self._sizes.add(norms[keep])

    def judge(self, collected: "Collected") -> None:
        """Leave out what is absurdly large of a round that was held until all replies are in."""
        if not self._look_at_each:
            self._unread.append(collected.unread_norms)  # to wait for them would take time
        if not collected.holds:
            return
        if self._limited:
            self._leave_out(collected)
        for norms in collected.norms:
            self._sizes.add(norms[np.isfinite(norms)])

    def blame(self, collected: "Collected") -> bool:
        """Find who made the server's step diverge, and leave their replies out of a held round.

        Returns:
            Whether somebody was left out; a run that stops at bad replies ends here instead. If
            nobody stands out, nobody is blamed.
        """
        if self._stop or collected.holds:
            for norms in itertools.chain.from_iterable([*self._unread][:-1]):
                self._sizes.add(norms)
            self._unread.clear()
            return self._leave_out(collected, ", and with it the server's step is not finite")
        return False

    def _leave_out(self, collected: "Collected", what: str = "") -> bool:
        norms = collected.norms
        if not norms:
            return False
        flat = np.concatenate(norms)
        bad = np.zeros(len(flat), bool)
        known = np.isfinite(flat)
        bad[known] = self._sizes.absurd_in_round(flat[known])
        if not bad.any():
            return False
        parts = np.split(bad, np.cumsum([len(part) for part in norms])[:-1])
        for clients, norm in collected.leave_out(parts):
            self.replies -= len(clients)
            self._reject_large(clients, norm, what)
        return True

    def _reject_large(self, clients: list[int], norm: float, what: str = "") -> None:
        reason = self._sizes.reason(norm) + what
        if len(clients) > 1:
            reason = reason.replace("its update has", "a sum that it is in has")
        self._reject([Rejected(client, reason) for client in clients])

    def _leave_out_infinite(
        self,
        block: Block,
        members: NDArray[np.int64],
        keep: NDArray[np.bool_],
        round_: int,
        norms: NDArray[np.float64],
    ) -> None:
        infinite = ~finite_rows(block.metrics["loss"], norms) & keep
        if not infinite.any():
            return
        bad = np.repeat(infinite, members)
        clients, sizes = block.clients[bad].tolist(), np.repeat(members, members)[bad].tolist()
        if self._stop:
            raise diverged(round_, f"{culprit(clients[0], sizes[0])} is")
        for client, size in zip(clients, sizes, strict=True):
            what = "its update" if size == 1 else "a sum that it is in"
            self.rejected.append(Rejected(client, f"{what} is not finite"))
        keep &= ~infinite

    def _forget(self, clients: list[int], version: int) -> None:
        """Note that clients have answered what they were asked in a round."""
        for client in clients:
            if self._asked.get(client) == version:
                del self._asked[client]

    def _reject(self, bad: list[Rejected]) -> None:
        if bad and self._stop:
            client, reason = bad[0]
            raise BadReplyError(
                f"The reply of client {client} cannot be used: {reason}. Fix the client, or"
                " leave such replies out with --bad-replies skip."
            )
        self.rejected += bad


def culprit(client: int, members: int) -> str:
    """Return who sent a row, given its first client: of a sum, nobody knows which of them."""
    if members == 1:
        return f"client {client} sent back a model that"
    return f"the sum of the updates of client {client} and {members - 1} more"


def diverged(round_: int, what: str) -> DivergedError:
    """Return the error of a round in which something "is" not finite."""
    first = " If that does not help, check the data and the model's first parameters."
    return DivergedError(
        f"Round {round_ + 1}: {what} not finite. Training diverged: use a smaller --lr or"
        f" --server-lr, or fewer local steps.{'' if round_ else first}"
    )
