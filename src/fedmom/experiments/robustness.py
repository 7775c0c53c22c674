"""The runs of a table of attacks and rules: their settings, and what is read from them."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedmom.core.errors import FedMomError
from fedmom.core.files import slug
from fedmom.experiments import settings
from fedmom.experiments.settings import RunConfig

NO_ATTACK = "none"
ATTACKS = ("sign_flip:scale=10", "label_flip", "alie", "backdoor:scale=5")
# {f} becomes the hostile replies that a round should bear, {share} their share of the replies.
RULES = (
    *("mean", "median", "trimmed_mean:share={share}", "multi_krum:attackers={f}"),
    *("geometric_median", "centered_clipping", "norm_bound"),
    "nearest_neighbour_mixing:attackers={f}+trimmed_mean:share={share}",
)
DEFAULTS: dict[str, Any] = {
    "clients-per-round": 20,
    "weighting": "uniform",
    "rounds": 100,
    "eval-every": 100,
}


def most_hostile(share: float, replies: int) -> int:
    """Return f: the hostile replies that a round seldom has more of, as far as rules can bear it.

    A cohort is drawn at random, so it has about share · M hostile clients, give or take
    √(M share (1 - share)): f is two of these above.

    Examples:
        >>> most_hostile(0.1, 20), most_hostile(0.2, 20), most_hostile(0.2, 7)
        (5, 8, 2)
    """
    mean, spread = share * replies, math.sqrt(replies * share * (1 - share))
    return max(0, min(math.ceil(mean + 2 * spread), (replies - 3) // 2))


def runs(
    shared: Mapping[str, Any],
    algorithms: Sequence[str],
    attacks: Sequence[str],
    rules: Sequence[str],
    shares: Sequence[float],
    seeds: int,
) -> dict[str, RunConfig]:
    """Return the settings of every run of the table, by the run's name.

    Args:
        shared: The settings that all share.
        algorithms: The algorithms, with options.
        attacks: The attacks, without their share.
        rules: The rules; with {f} and {share} for what depends on the share of hostile clients.
        shares: The shares of hostile clients.
        seeds: Seeds of each, from that of ``shared`` on.
    """
    from fedmom.experiments.defaults import fitting  # loads JAX

    first = settings.parse(shared)
    replies, found = first.clients_per_round, dict[str, RunConfig]()
    # Seeds last, so that a table that is stopped early has all of its cells.
    for seed in range(first.seed, first.seed + seeds):
        for share, algorithm, rule, attack in itertools.product(
            shares, algorithms, rules, (NO_ATTACK, *attacks)
        ):
            if not 0 < share < 0.5:
                raise FedMomError(f"--shares {share:g} is not in (0, 0.5).")
            f = most_hostile(share, replies)
            values = {
                "algorithm": algorithm,
                "aggregate": rule.format(f=f, share=round(min(f / replies, 0.49), 3)),
                "attack": with_share(attack, share),
                "seed": seed,
            }
            name = run_name(algorithm, rule, attack, share, seed)
            found[name] = settings.parse(fitting({**shared, **values}))
    return found


def run_name(algorithm: str, rule: str, attack: str, share: float, seed: int) -> str:
    """Return the name of a run, which is its folder's."""
    texts = algorithm, rule.replace("{f}", "f").replace("{share}", "share"), attack
    parts = [slug(text.replace("+", "-"), keep="-_.=") for text in texts]
    if attack != NO_ATTACK or "{" in rule:  # otherwise it is one run for all shares
        parts.append(f"share{share:g}")
    return "_".join([*parts, f"seed{seed}"])


def with_share(attack: str, share: float) -> str:
    """Return an attack with the share of hostile clients.

    Examples:
        >>> with_share("sign_flip:scale=10", 0.2), with_share("alie", 0.1), with_share("none", 0.1)
        ('sign_flip:scale=10,share=0.2', 'alie:share=0.1', 'none')
    """
    if attack == NO_ATTACK:
        return attack
    return f"{attack}{',' if ':' in attack else ':'}share={share:g}"
