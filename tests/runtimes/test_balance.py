"""Which actor works for which clients."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedmom.runtimes.cluster.balance import Speed, deal


@given(
    costs=st.lists(st.integers(1, 100), min_size=1, max_size=40),
    speeds=st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=1, max_size=5),
    data=st.data(),
)
def test_work_is_dealt_out_once_and_evenly(costs, speeds, data):
    homes = data.draw(
        st.lists(
            st.one_of(st.none(), st.integers(0, len(speeds) - 1)),
            min_size=len(costs),
            max_size=len(costs),
        )
    )
    shares = deal(np.array(costs, float), speeds, homes)
    assert sorted(place for share in shares for place in share) == list(range(len(costs)))
    ends = [sum(costs[p] for p in share) / v for share, v in zip(shares, speeds, strict=True)]
    # Nobody is done later than the mean, by more than one client.
    assert max(ends) <= sum(costs) / sum(speeds) + max(costs) / min(speeds) + 1e-6


def test_clients_stay_with_their_states_while_that_is_fair():
    costs = np.ones(8)
    assert deal(costs, [1.0, 1.0], [1, 0] * 4) == [[1, 3, 5, 7], [0, 2, 4, 6]]
    crowded = deal(costs, [1.0, 1.0], [0] * 8)
    assert [len(share) for share in crowded] == [4, 4]


def test_speeds_count_once_they_differ_by_more_than_noise():
    fast, slow, new = Speed(), Speed(), Speed()
    for seconds in (50.0, 50.0, 1.0, 1.05, 0.95):  # the first two compile
        fast.note(100, seconds)
        slow.note(100, 2 * seconds)
    assert Speed.compared([fast, fast]) == [1.0, 1.0]
    assert Speed.compared([new, new]) == [1.0, 1.0]
    a, b, c = Speed.compared([fast, slow, new])
    assert a / b == 2.0
    assert b < c < a
    twin = Speed()
    for seconds in (1, 1, 1.05, 1.0):
        twin.note(100, seconds)
    assert Speed.compared([fast, twin])[0] == Speed.compared([fast, twin])[1]
