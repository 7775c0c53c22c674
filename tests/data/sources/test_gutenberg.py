"""Roles from Gutenberg's text: LEAF's numbers, LEAF's windows, and each of its rules."""

import gzip
import json
import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmom.core.errors import FedMomError
from fedmom.core.files import cache_folder
from fedmom.data.sources.gutenberg import gutenberg_roles, is_gutenberg, load_gutenberg
from fedmom.data.sources.shakespeare import SYMBOLS, WINDOW, split_sizes
from tests import by_hand
from tests.conftest import SHARED

WORKS = SHARED / "shakespeare_gutenberg100_2018.txt.gz"
LEAF = SHARED / "leaf_json" / "shakespeare"
GAP = WINDOW - 1

TITLE_PAGE = [
    "",
    "Project Gutenberg's The Complete Works of William",
    "Shakespeare",
    "",
    "by William Shakespeare",
    "",
    "  Nobody. This stands before the first play.",
    "",
]
LONG = "and so it goes on and on for many a word until there are more than eighty characters"


def book(*plays):
    """A text of a title page and plays, each a title with its lines."""
    lines = list(TITLE_PAGE)
    for title, body in plays:
        lines += ["", "", title, "", "", "by William Shakespeare", "", *body]
    return "\n".join([*lines, ""])


def written(folder, text, name="works.txt"):
    path = folder / name
    content = text.encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


def spelled(data, position):
    """A sample as characters: its window, and the one after it."""
    x, y = by_hand.read(data, np.array([position]))
    return "".join(SYMBOLS[i] for i in x[0]) + SYMBOLS[y[0]]


# --- the real text -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def works():
    if not WORKS.exists():
        pytest.skip("the real text is not in ../shared/data")
    return gutenberg_roles(WORKS)


@pytest.fixture(scope="module")
def leaf():
    """LEAF's own sample: by role, its training and its test windows with their labels."""
    if not LEAF.exists():
        pytest.skip("LEAF's sample is not in ../shared/data")
    parts = []
    for split in ("train", "test"):
        (path,) = (LEAF / split).glob("*.json.gz")
        parts.append(json.loads(gzip.decompress(path.read_bytes())))
    return parts


def with_labels(part, user):
    samples = part["user_data"][user]
    return [x + y for x, y in zip(samples["x"], samples["y"], strict=True)]


def windows(text):
    return [text[i : i + WINDOW + 1] for i in range(len(text) - WINDOW)]


def test_the_real_text_gives_the_numbers_of_leafs_preprocessing(works):
    sizes = np.array([len(text) - WINDOW for text in works.values()])
    assert len(sizes) == 563
    assert sizes.sum() == 2_140_051
    assert f"{sizes.mean():.2f}" == "3801.16"
    assert f"{sizes.std():.2f}" == "7098.74"
    characters = set().union(*works.values())
    assert len(characters) == 77
    assert characters <= set(SYMBOLS)


def test_whole_roles_of_leafs_sample_are_ours_character_by_character_and_split_alike(works, leaf):
    train, test = leaf
    *whole, _ = train["users"]  # LEAF's sampling cuts the last role short
    assert len(whole) == 9
    for user in whole:
        ours, sizes = windows(works[user]), split_sizes(len(works[user]) - WINDOW)
        assert with_labels(train, user) == ours[: sizes[0]]
        assert with_labels(test, user) == ours[sizes[0] + GAP :]
        assert len(ours) - sizes[0] - GAP == sizes[1]


def test_the_role_that_leafs_sampling_cut_short_is_drawn_from_our_windows(works, leaf):
    train, test = leaf
    user = train["users"][-1]
    theirs = Counter(with_labels(train, user) + with_labels(test, user))
    assert theirs <= Counter(windows(works[user]))


def test_leafs_sample_has_its_sizes_and_leaves_the_gap_out_of_the_test_windows(leaf):
    train, test = leaf
    assert sum(train["num_samples"]) == 41_990
    assert sum(test["num_samples"]) == 4_671  # LEAF counts them before it leaves the gap out
    for user, trained, tested in zip(
        train["users"], train["num_samples"], test["num_samples"], strict=True
    ):
        sizes = len(with_labels(train, user)), len(with_labels(test, user))
        assert sizes == (trained, tested - GAP) == split_sizes(trained + tested)


def test_the_real_text_becomes_clients_with_their_samples_at_the_right_place(works):
    data = load_gutenberg(WORKS)
    assert data.name == "shakespeare (gutenberg)"
    sizes = {u: split_sizes(len(t) - WINDOW) for u, t in works.items()}
    assert list(data.users) == list(sizes)
    assert [*zip(data.train.size, data.test.size, strict=True)] == [sizes[u] for u in data.users]
    for k in np.flatnonzero(data.test.size)[[0, 17, -1]]:
        text = works[data.users[k]]
        assert spelled(data, data.train.start[k]) == text[: WINDOW + 1]
        assert spelled(data, data.test.start[k] + data.test.size[k] - 1) == text[-WINDOW - 1 :]


def test_the_real_text_is_recognised():
    if not WORKS.exists():
        pytest.skip("the real text is not in ../shared/data")
    assert is_gutenberg(WORKS)


# --- each rule -----------------------------------------------------------------------------


def test_a_speech_is_its_speakers_line_and_the_indented_lines_after_it(tmp_path):
    body = [
        f"  FIRST LORD. Good  morrow. {LONG}",
        "    to you,",
        "        my   lord.   ",
        "  Page. Sir.",
    ]
    roles = gutenberg_roles(written(tmp_path, book(("KING JOHN", body))))
    assert roles == {"KING_JOHN_FIRST_LORD": f"Good morrow. {LONG} to you, my lord. "}


def test_lines_with_less_indentation_are_dropped_and_the_speech_goes_on_after_them(tmp_path):
    body = [
        f"  LEAR. {LONG}",
        "Enter a fool",
        "",
        "  They sit",
        "   Music",
        "    who are you?",
        "                    Exit LEAR",
        "  FOOL. Nobody.",
    ]
    roles = gutenberg_roles(written(tmp_path, book(("KING LEAR", body))))
    assert roles == {"KING_LEAR_LEAR": f"{LONG} who are you? Exit LEAR "}


def test_the_spelling_of_a_name_in_capitals_or_not_makes_no_difference(tmp_path):
    body = [f"  SIR Toby. {LONG}", "  Sir TOBY. Ha!", "  sir toby. Ho!", "  MARIA. Hush."]
    roles = gutenberg_roles(written(tmp_path, book(("TWELFTH NIGHT", body))))
    assert roles == {"TWELFTH_NIGHT_SIR_TOBY": f"{LONG} Ha! Ho! "}


@pytest.mark.parametrize(
    "line",
    [
        "  KING HENRY: Ho!",
        "  1 LORD. Ho!",
        "   LORD. Ho!",
        " LORD. Ho!",
        "  O'NEIL. Ho!",
        "  LORD.",
    ],
)
def test_a_name_is_letters_and_spaces_after_two_spaces_and_before_a_full_stop(tmp_path, line):
    body = [f"  ARIEL. {LONG}", line, "    One.", "    Two.", "  CALIBAN. No."]
    roles = gutenberg_roles(written(tmp_path, book(("THE TEMPEST", body))))
    assert roles == {"THE_TEMPEST_ARIEL": f"{LONG} One. Two. "}


def test_the_same_name_in_two_plays_is_two_roles_and_nobody_speaks_across_plays(tmp_path):
    body = [f"  BOY. {LONG}", "    One.", "    Two.", "  GIRL. Three."]
    text = book(("A, B & C", ["    no speech yet", *body]), ("D", ["    nor here", *body]))
    roles = gutenberg_roles(written(tmp_path, text))
    assert roles == dict.fromkeys(["A__B___C_BOY", "D_BOY"], f"{LONG} One. Two. ")


def test_plays_of_one_title_are_one_play(tmp_path):
    body = [f"  BOY. {LONG}", "    One.", "    Two.", "  GIRL. Three."]
    roles = gutenberg_roles(written(tmp_path, book(("D", body), ("D", body))))
    assert roles == {"D_BOY": f"{LONG} One. Two. " * 2}


@pytest.mark.parametrize("distance", range(2, 8))
def test_a_title_is_the_nearest_words_two_to_seven_lines_above(tmp_path, distance):
    body = [f"  BOY. {LONG}", "    One.", "    Two.", "  GIRL. Three."]
    heading = ["NOT THIS", "  THE TITLE ", *[""] * (distance - 1), "   by William Shakespeare"]
    text = "\n".join([*TITLE_PAGE, *heading, *body])
    assert list(gutenberg_roles(written(tmp_path, text))) == ["THE_TITLE_BOY"]


def test_the_line_just_above_the_author_is_no_title(tmp_path):
    body = [f"  BOY. {LONG}", "    One.", "    Two.", "  GIRL. Three."]
    text = "\n".join([*TITLE_PAGE, "TITLE", "A Comedy", "by William Shakespeare", *body])
    assert list(gutenberg_roles(written(tmp_path, text))) == ["TITLE_BOY"]


def test_an_author_without_a_title_is_refused_with_its_line(tmp_path):
    text = "\n".join([*TITLE_PAGE, *[""] * 8, "by William Shakespeare", "  BOY. Ho!"])
    with pytest.raises(FedMomError, match=f"line {len(TITLE_PAGE) + 9}: .* no title"):
        gutenberg_roles(written(tmp_path, text))


def test_the_comedy_of_errors_is_not_indented_and_acts_and_notices_end_a_speech(tmp_path):
    body = [
        "Enter all",
        f"AEGEON. {LONG}",
        "Proceed, Solinus,",
        "  to procure my fall.",
        "ACT I. SCENE 1",
        "A hall",
        "DUKE. Merchant of Syracuse,",
        "",
        "<<THIS ELECTRONIC VERSION",
        "OF THE WORKS>>",
        "AEGEON. Yet this my comfort.",
        "<<END>>",
    ]
    text = book(("THE COMEDY OF ERRORS", body), ("CYMBELINE", body))
    spoken = f"{LONG} Proceed, Solinus, to procure my fall. Yet this my comfort. "
    assert gutenberg_roles(written(tmp_path, text)) == {"THE_COMEDY_OF_ERRORS_AEGEON": spoken}


def test_a_role_of_two_lines_and_a_play_of_one_speaker_are_dropped(tmp_path):
    three = [f"  BOY. {LONG}", "    One.", "    Two."]
    text = book(("ONE", three), ("TWO", [*three, f"  GIRL. {LONG}", "    Three."]))
    assert list(gutenberg_roles(written(tmp_path, text))) == ["TWO_BOY"]


@pytest.mark.parametrize(("letters", "samples"), [(75, 0), (76, 1), (90, 15)])
def test_a_role_has_a_sample_for_every_character_after_the_eightieth(tmp_path, letters, samples):
    # The three lines "o" * letters, "a" and "b" join to letters + 5 characters.
    body = [f"  BOY. {'o' * letters}", "    a", "    b", f"  GIRL. {LONG}", "    c", "    d"]
    roles = gutenberg_roles(written(tmp_path, book(("X", body))))
    assert len(roles.get("X_BOY", " " * WINDOW)) - WINDOW == samples


def test_nothing_is_read_behind_line_124195(tmp_path):
    body = [f"  BOY. {LONG}", "    One.", "    Two.", "  GIRL. Three."]
    before = len(book(("X", body)).splitlines()) - 1  # LEAF drops the first line
    padding = ["dropped"] * (124_195 - before)
    text = book(("X", [*body, *padding, "  BOY. Last.", "    Never.", "  BOY. Nor this."]))
    assert gutenberg_roles(written(tmp_path, text)) == {"X_BOY": f"{LONG} One. Two. Last. "}


# --- files ---------------------------------------------------------------------------------

PLAY = ("X", [f"  BOY. {LONG}", *["    " + LONG] * 12, "  GIRL. Three."])


@pytest.mark.parametrize("name", ["works.txt", "works.TXT", "works.txt.gz"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_gzip_byte_order_mark_and_newlines_change_nothing(tmp_path, name, mark, newline):
    path = written(tmp_path, mark + book(PLAY).replace("\n", newline), name)
    assert is_gutenberg(path)
    assert gutenberg_roles(path) == {"X_BOY": f"{LONG} " * 13}


def test_only_a_text_that_begins_like_the_complete_works_is_recognised(tmp_path):
    assert not is_gutenberg(tmp_path / "missing.txt")
    assert not is_gutenberg(tmp_path)
    assert not is_gutenberg(written(tmp_path, "Moby Dick, by Herman Melville", "moby.txt"))
    assert not is_gutenberg(written(tmp_path, book(PLAY), "works.json"))
    (tmp_path / "plain.txt.gz").write_text(book(PLAY))
    assert not is_gutenberg(tmp_path / "plain.txt.gz")


def test_a_torn_gzip_file_is_still_recognised_and_refused_by_name(tmp_path):
    path = written(tmp_path, book(PLAY), "works.txt.gz")
    path.write_bytes(path.read_bytes()[:-9])
    assert is_gutenberg(path)
    with pytest.raises(FedMomError, match=r"works\.txt\.gz is not a complete gzip file .* again"):
        load_gutenberg(path)
    assert not list(cache_folder().glob("*"))


def test_what_is_no_gzip_file_is_refused(tmp_path):
    path = tmp_path / "works.txt.gz"
    path.write_text(book(PLAY))
    with pytest.raises(FedMomError, match=r"works\.txt\.gz is not a complete gzip file"):
        gutenberg_roles(path)


def test_another_encoding_is_refused_with_the_place(tmp_path):
    path = tmp_path / "works.txt"
    path.write_bytes(b"Caf\xe9")
    with pytest.raises(FedMomError, match=r"works\.txt is not UTF-8 at byte 3\. Save the text"):
        gutenberg_roles(path)


def test_a_missing_file_is_refused(tmp_path):
    for read in (gutenberg_roles, load_gutenberg):
        with pytest.raises(FedMomError, match=r"none\.txt cannot be read: No such file"):
            read(tmp_path / "none.txt")


@pytest.mark.parametrize("text", ["", "Moby Dick", book(), book(("X", ["BOY. " + LONG] * 9))])
def test_a_text_without_roles_is_refused(tmp_path, text):
    with pytest.raises(FedMomError, match=r"works\.txt has no speaking roles .* Use Project"):
        gutenberg_roles(written(tmp_path, text))


@pytest.mark.parametrize(("characters", "test"), [(870, 0), (871, 1)])
def test_a_short_role_is_a_client_without_test_samples(tmp_path, characters, test):
    # 791 samples: 711 for training, 79 between, 1 for testing. With 790 none is left.
    body = [f"  BOY. {'o' * (characters - 5)}", "    a", "    b", "  GIRL. Three."]
    data = load_gutenberg(written(tmp_path, book(("X", body))))
    assert (data.clients, *data.train.size, *data.test.size) == (1, 711, test)


def test_typographic_characters_become_plain_ones_one_for_one(tmp_path):
    strange, plain = "“‘Tis” Cæsar’s café—à la mode", "\"'Tis\" Cesar's cafe-a la mode"
    body = [f"  BOY. {strange}", *["    " + LONG] * 12, "  GIRL. Three."]
    path = written(tmp_path, book(("X", body)))
    assert gutenberg_roles(path)["X_BOY"].startswith(strange)  # the text itself stays LEAF's
    data = load_gutenberg(path)
    assert spelled(data, 0).startswith(plain)
    assert len(data.arrays["text"]) == len(gutenberg_roles(path)["X_BOY"])


def test_a_character_with_nothing_plain_near_it_is_refused_with_file_and_role(tmp_path):
    body = [f"  BOY. Ω {LONG}", *["    " + LONG] * 12, "  GIRL. Three."]
    path = written(tmp_path, book(("X", body)))
    with pytest.raises(FedMomError, match=r"works\.txt, role X_BOY: The text has 'Ω'"):
        load_gutenberg(path)
    assert not list(cache_folder().glob("*"))


def test_a_changed_file_is_read_again(tmp_path):
    path = written(tmp_path, book(PLAY))
    assert list(load_gutenberg(path).users) == ["X_BOY"]
    written(tmp_path, book(("OTHER", PLAY[1])))
    assert list(load_gutenberg(path).users) == ["OTHER_BOY"]


# --- laws ----------------------------------------------------------------------------------

WORDS = st.text(sorted(set(SYMBOLS) - {"\n"}), min_size=10, max_size=40)
NAMES = st.sampled_from(["BOY", "GIRL", "FIRST LORD"])
LINES = st.lists(WORDS, max_size=4)
SPEECHES = st.lists(st.tuples(NAMES, LINES, st.integers(1, 60)), min_size=2, max_size=8)
NOISE = st.sampled_from([[], [""], ["Enter all"], ["  They sit", "   Music"]])


@given(st.lists(st.tuples(SPEECHES, NOISE), min_size=1, max_size=3))
def test_clients_windows_spell_their_roles_and_test_windows_share_nothing_with_training(
    tmp_path_factory, plays
):
    bodies, expected = [], {}
    for number, (speeches, noise) in enumerate(plays):
        said: dict[str, list[str]] = {}
        body = []
        for name, lines, times in speeches:
            body += [f"  {name}. Ho!", *noise, *[f"    {line}" for line in lines * times]]
            said.setdefault(name, []).extend(["Ho!", *lines * times])
        bodies.append(("PLAY " + "ABC"[number], body))
        for name, lines in said.items():
            text = re.sub(" +", " ", "".join(line + " " for line in lines))
            if len(said) > 1 and len(lines) > 2 and len(text) > WINDOW:
                expected[f"PLAY_{'ABC'[number]}_{name.replace(' ', '_')}"] = text
    path = written(tmp_path_factory.mktemp("works"), book(*bodies))
    if not expected:
        with pytest.raises(FedMomError):
            load_gutenberg(path)
        return
    assert gutenberg_roles(path) == expected
    data = load_gutenberg(path)
    assert list(data.users) == list(expected)
    for k, text in enumerate(expected.values()):
        first, begin = int(data.train.start[k]), int(data.test.start[k])
        train, test = int(data.train.size[k]), int(data.test.size[k])
        for position in (first, first + train - 1, *([begin, begin + test - 1] if test else [])):
            assert spelled(data, position) == text[position - first :][: WINDOW + 1]
        # LEAF's gap keeps the windows apart, not the last training label, which opens the test.
        assert first + train - 1 + WINDOW == begin or test == 0
        assert begin + test + WINDOW == first + len(text)
