"""Lists of different lengths become arrays when asked, and labels at their places."""

import numpy as np
import pytest

from fedmom import FedMomError, from_arrays

PAIRS = [0, 1]  # of clients


@pytest.mark.parametrize("kind", [list, tuple, np.array])
def test_shorter_rows_are_filled_up(kind):
    x, y = [kind([5, 7, 6]), kind([6])], [kind([1, 0, 1]), kind([2])]
    data = from_arrays(x, y, PAIRS, pad=0)
    assert data.features[:] == ("vector", (3,), 3, "sequence")
    assert data.arrays["x"].tolist() == [[5, 7, 6], [6, 0, 0]]
    assert data.arrays["y"].tolist() == [[1, 0, 1], [2, -100, -100]]
    assert data.tokens == (0, None, None, None)


def test_labels_may_be_texts_or_one_a_row():
    texts = from_arrays([[5, 7], [6]], [["b", "a"], ["c"]], PAIRS, pad=-1)
    assert (texts.class_names, texts.arrays["y"].tolist()) == (("a", "b", "c"), [[1, 0], [2, -100]])
    assert texts.arrays["x"].tolist() == [[5, 7], [6, -1]]
    whole = from_arrays([[5, 7], [6]], ["no", "yes"], PAIRS, pad=0)
    assert (whole.features.task, whole.arrays["y"].tolist()) == ("classes", [0, 1])


@pytest.mark.parametrize(
    ("x", "y", "says"),
    [
        ([[5, 0], [6]], [1, 2], "row 0 has pad=0 at place 1 .* Choose a number that no input has"),
        ([[5, 7], [6]], [[1, 2], [1, 2]], "y has 2 labels in row 1, and x has 1 values"),
        ([[5, 7], [6.5]], [1, 2], "place 0 of row 1 is 6.5"),
        ([[5, 7], [None]], [1, 2], "place 0 of row 1 is None"),
        ([[5, 7], []], [1, 2], "row 1 is empty"),
        ([[5, 7], 3], [1, 2], "row 1 is 3 .* must be a list"),
        (5, [1, 2], "x is 5. It must be a list of lists"),
        ([[5], [6]], 5, "y is 5"),
        ([[5, 7], [6]], [[1, 2]], "x has 2, y has 1"),
        ([["a"], ["b"]], [1, 2], "row 0 is .'a'.. Sequences of different lengths are lists of wh"),
    ],
)
def test_what_cannot_be_padded_is_refused(x, y, says):
    with pytest.raises(FedMomError, match=says):
        from_arrays(x, y, PAIRS, pad=0)


def test_without_padding_ragged_rows_are_refused():
    with pytest.raises(FedMomError, match=r"row 1 has the shape \(1,\), and row 0 has \(2,\)"):
        from_arrays([[1, 2], [3]], [0, 1], PAIRS)


@pytest.mark.parametrize("dtype", [int, np.int8, float])
def test_a_marked_label_does_not_count(dtype):
    y = np.array([[0, -100], [2, 0]], dtype)
    data = from_arrays(np.ones((2, 2), int), y, PAIRS, task="sequence")
    assert (data.features.classes, data.arrays["y"].tolist()) == (3, [[0, -100], [2, 0]])


def test_labels_that_mark_places_are_of_sequences():
    """Also where all others are 0 and 1, which could be several labels of a row otherwise."""
    data = from_arrays(np.ones((2, 3), int), [[0, 1, -100], [1, 1, 0]], PAIRS)
    assert data.features.task == "sequence"


@pytest.mark.parametrize(
    ("y", "says"),
    [
        ([[0, -1], [1, 2]], "label of row 0, column 1 is -1 .* at least 0, or -100 where it does"),
        ([[-100, -100], [-100, -100]], "no label counts: all are -100"),
    ],
)
def test_other_negative_labels_of_sequences_are_refused(y, says):
    with pytest.raises(FedMomError, match=says):
        from_arrays(np.ones((2, 2), int), y, PAIRS, task="sequence")
