"""What is particular to devices: their state, their errors, replies that nobody should believe."""

import json
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.task_identity import TaskIdentity

import fedmom
from fedmom.core.errors import BadReplyError, FedMomError
from fedmom.data.federated import Features
from fedmom.data.schema import Schema
from fedmom.flower.server import News
from fedmom.runtimes.base import Block, Failure
from fedmom.runtimes.devices import link, wire
from fedmom.runtimes.devices import runtime as device_runtime
from fedmom.runtimes.devices.client import answer
from fedmom.runtimes.devices.link import OVERHEAD, Inbox, Link
from fedmom.runtimes.devices.population import (
    Device,
    DeviceOptions,
    _tell_heavy,
    agreed,
    from_json,
    meet,
    to_json,
)
from fedmom.runtimes.local import LocalRuntime
from tests.conftest import population, workload_of
from tests.runtimes.device_grid import LoopGrid, devices
from tests.runtimes.test_contract import SHORT, asked, by_client, close, counting, model_at


@pytest.fixture(scope="module")
def data():
    return population([5, 9, 3, 7], test_sizes=[2, 0, 1, 4])


@pytest.fixture(scope="module")
def model(data):
    return fedmom.build_model("logreg", data.features)


@pytest.fixture
def _no_pauses(monkeypatch):
    monkeypatch.setattr(device_runtime, "FIRST_PAUSE", 0.0)
    monkeypatch.setattr(device_runtime, "SECONDS_BETWEEN_LOOKS", 0.0)


def work(data, model, algorithm=None):
    return workload_of(data, model, SHORT, algorithm, 0)


def test_states_stay_on_their_devices_and_survive_restarts(data, model, tmp_path):
    """A counter that multiplies the update: 1, 2, 3 times, through a new runtime and devices."""
    params = model_at(model)

    def expected(times):
        sent = jax.tree.map(lambda w: times * np.asarray(w), params)
        return {0: sent, 2: sent}

    runtime = devices(work(data, model, counting()), folder=tmp_path)
    for times in (1, 2):
        close(asked(runtime, times, [0, 2], params), expected(times))
        runtime.commit()
    snapshot = runtime.snapshot()
    assert snapshot.tensors["devices/state_of"].tolist() == [[0, 2], [2, 2]]
    asked(runtime, 3, [0], params)  # a round that the server forgets: it dies before its commit
    again = devices(work(data, model, counting()), folder=tmp_path)
    again.restore(snapshot, params)
    third = asked(again, 0, [0, 2], params)
    close(third, expected(3))
    assert sorted(f.name for f in tmp_path.rglob("*.safetensors"))


def test_who_is_asked_twice_before_a_round_counts_goes_on_from_its_newest_state(data, model):
    """As in every runtime: with a buffer, a fast client may answer twice in a round."""
    params = model_at(model)
    runtime = devices(work(data, model, counting()))
    for times in (1, 2, 3):
        sent = jax.tree.map(lambda w, t=times: t * np.asarray(w), params)
        close(asked(runtime, 0, [1], params), {1: sent})


def test_an_owner_may_delete_the_state(data, model, tmp_path):
    params = model_at(model)
    runtime = devices(work(data, model, counting()), folder=tmp_path)
    first = asked(runtime, 0, [1], params)
    runtime.commit()
    for file in tmp_path.rglob("*.safetensors"):
        file.write_bytes(b"damaged")
    close(asked(runtime, 0, [1], params), first)  # as a client that is new


def test_old_states_are_forgotten_once_no_checkpoint_can_need_them(data, model, tmp_path):
    params = model_at(model)
    runtime = devices(work(data, model, counting()), folder=tmp_path)
    for round_ in range(6):
        asked(runtime, round_, [1], params)
        runtime.commit()
        runtime.snapshot()
    kept = sorted(int(f.stem[6:]) for f in tmp_path.rglob("*.safetensors"))
    assert kept == [3, 4, 5]  # of the two newest checkpoints, and of the round under way


def test_a_device_tells_an_error_by_its_name_alone(data, model):
    def run(*_):
        raise ZeroDivisionError("sample 17 of /home/ann/secret.npz")

    seen = []
    algorithm = fedmom.Algorithm(fedmom.servers.fedavg(), client=fedmom.Client(run))
    runtime = devices(work(data, model, algorithm), trouble=seen.append, least=1)
    runtime._least = 0
    runtime.ask(0, np.array([1]), model_at(model))
    ((client, reason, version),) = list(runtime.replies())
    assert (client, version) == (1, 0)
    assert reason == "ZeroDivisionError on the device, whose own log says more"
    assert "secret" in str(seen[0])  # which stays there


def test_a_devices_own_words_cannot_steer_a_terminal(data, model):
    """What a hostile device says of its failure is shown in a line of the run's terminal."""

    def change(reply):
        return Message(Error(2, "\x1b[2J\r\nall [/]" + 400 * "x"), reply_to=sent(reply))

    def sent(reply):
        original = message_of(RecordDict())
        original.metadata.__dict__["_message_id"] = reply.metadata.reply_to_message_id
        original.metadata.dst_node_id = reply.metadata.src_node_id
        return original

    runtime = devices(work(data, model), change=change)
    runtime._least = 0
    runtime.ask(0, np.array([1]), model_at(model))
    ((_, reason, _),) = list(runtime.replies())
    assert reason.startswith("?[2J all [/]xxx")
    assert len(reason) == link.LONGEST


@pytest.mark.usefixtures("_no_pauses")
def test_a_round_with_too_few_replies_is_repeated_and_recorded(data, model):
    runtime = devices(work(data, model), least=2)
    events = []
    runtime._link.journal = events.append
    runtime.grid.offline = {101, 102}
    runtime.ask(4, np.array([0, 1, 2]), model_at(model))
    answers = iter(runtime.replies())
    assert next(answers).clients.tolist() == [0]
    assert sorted(runtime.under_way()) == [(1, 4), (2, 4)]
    runtime.grid.offline = {102}
    assert next(answers).clients.tolist() == [1]
    assert list(answers) == [Failure(2, "it is offline", 4)]
    assert [e["clients"] for e in events if e["event"] == "online"] == [[0, 3], [0, 1, 3]]
    repeated = [e for e in events if e["event"] == "repeated"]
    assert repeated
    assert repeated[0]["round"] == 5
    assert repeated[0]["clients"] == [1, 2]
    assert repeated[0]["reason"] == "1 of at least 2 replies"


def spoiled(content):
    """A grid's change: another content in place of a reply's."""

    def change(reply):
        reply.content = content(reply.content)
        return reply

    return change


def with_arrays(**arrays):
    return lambda content: RecordDict(
        {wire.UPDATE: ArrayRecord(arrays), wire.FACTS: content[wire.FACTS]}
    )


def facts(**numbers):
    return lambda content: RecordDict(
        {wire.UPDATE: content[wire.UPDATE], wire.FACTS: MetricRecord(numbers)}
    )


def lying(dtype, shape, array):
    """An array that says of itself what is not so."""
    return Array(dtype=dtype, shape=shape, stype="numpy.ndarray", data=Array(array).data)


GOOD = {"0": Array(np.zeros(3, np.float32)), "1": Array(np.zeros((4, 3), np.float32))}
BAD = {
    "no arrays": lambda content: RecordDict({wire.FACTS: content[wire.FACTS]}),
    "wrong names": with_arrays(**{"0": GOOD["0"], "w": GOOD["1"]}),
    "too few arrays": with_arrays(**{"0": GOOD["0"]}),
    "wrong shape": with_arrays(**{**GOOD, "1": Array(np.zeros((3, 4), np.float32))}),
    "wrong type": with_arrays(**{**GOOD, "1": Array(np.zeros((4, 3), np.float64))}),
    "text": with_arrays(**{**GOOD, "0": Array(np.array(["a", "b", "c"]))}),
    "type that is not so": with_arrays(
        **{**GOOD, "1": lying("float32", (4, 3), np.zeros((4, 3), np.float64))}
    ),
    "shape that is not so": with_arrays(
        **{**GOOD, "1": lying("float32", (4, 3), np.zeros((4, 4), np.float32))}
    ),
    "no numbers behind the header": with_arrays(
        **{
            **GOOD,
            "1": Array(
                dtype="float32",
                shape=(4, 3),
                stype="numpy.ndarray",
                data=GOOD["1"].data[:-4],
            ),
        }
    ),
    "no array at all": with_arrays(
        **{**GOOD, "1": Array(dtype="float32", shape=(4, 3), stype="numpy.ndarray", data=b"x" * 9)}
    ),
    "samples as text": lambda content: RecordDict(
        {wire.UPDATE: content[wire.UPDATE], wire.FACTS: ConfigRecord({"samples": "9"})}
    ),
    "samples as a float": facts(samples=9.0, loss=0.5),
    "negative samples": facts(samples=-9, loss=0.5),
    "no loss": facts(samples=9),
    "a metric that is a row": facts(samples=9, loss=0.5, drift=[0.5]),
    "a metric with a strange name": facts(samples=9, loss=0.5, **{"<b>": 0.5}),
    "a norm of its own": facts(samples=9, loss=0.5, norm=0.0),
    "too many metrics": facts(samples=9, loss=0.5, **{f"m{i}": 0.5 for i in range(101)}),
}


@pytest.mark.parametrize("content", BAD.values(), ids=BAD)
def test_a_reply_that_cannot_be_is_a_failure_and_says_why(data, model, content):
    runtime = devices(work(data, model), change=spoiled(content))
    runtime._least = 0
    runtime.ask(0, np.array([1]), model_at(model))
    (failure,) = list(runtime.replies())
    assert isinstance(failure, Failure)
    assert failure.client == 1
    assert "cannot be read (" not in failure.reason  # each is understood


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (facts(samples=10, loss=0.5), "it claims 10 samples and has 9"),
        (
            with_arrays(**{**GOOD, "0": Array(np.full(3, np.nan, np.float32))}),
            "its update is not finite",
        ),
    ],
)
def test_a_reply_that_is_well_formed_and_wrong_is_left_out_of_the_mean(
    data, model, content, reason
):
    """Client 1 lies; the run goes on with the others, as if it had not answered."""
    method = fedmom.Algorithm(fedmom.servers.fedavg(), rule=fedmom.mean("cohort"))

    def change(reply):
        return spoiled(content)(reply) if reply.metadata.src_node_id == 101 else reply

    def train(runtime, cohort):
        pace = fedmom.synchronous(3, lambda *_: np.array(cohort))
        return list(fedmom.train(runtime, pace=pace, rounds=1, bad_replies="skip"))

    runtime = devices(work(data, model, method), change=change)
    ((state, record),) = train(runtime, [0, 1, 2])
    assert [tuple(r) for r in record.rejected] == [(1, reason)]
    ((expected, _),) = train(LocalRuntime(work(data, model, method)), [0, 2])
    close(state.params, expected.params)


class Wire:
    """A SuperLink as the inbox sees it: the parts of one reply, some of them late."""

    def __init__(self, message, asked, late=0):
        self._parts = {k: v.deflate() for k, v in get_all_nested_objects(message).items()}
        self._message, self._asked, self._late = message, asked, late
        self.confirmed = []

    def PullMessages(self, request):  # noqa: N802
        if self._asked not in request.message_ids:
            return SimpleNamespace(messages_list=[], message_object_trees=[])
        metadata = SimpleNamespace(
            reply_to_message_id=self._asked, message_id=self._message.object_id
        )
        return SimpleNamespace(
            messages_list=[SimpleNamespace(metadata=metadata)],
            message_object_trees=[get_object_tree(self._message)],
        )

    def PullObject(self, request):  # noqa: N802
        self._late -= 1
        return SimpleNamespace(
            object_found=True,
            object_available=self._late < 0,
            object_content=self._parts[request.object_id] if self._late < 0 else b"",
        )

    def ConfirmMessageReceived(self, request):  # noqa: N802
        self.confirmed.append(request.message_object_id)


def message_of(content):
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    return Message(content, 1, "train")


def inbox(content, late=0):
    message = message_of(content)
    grid = SimpleNamespace(
        _runtime_client=Wire(message, "question", late),
        node=Node(node_id=1),
        run=SimpleNamespace(run_id=1),
    )
    return Inbox(grid), grid._runtime_client


def test_a_reply_is_taken_part_by_part_without_waiting():
    content = RecordDict({wire.UPDATE: ArrayRecord([np.arange(5, dtype=np.float32)])})
    box, superlink = inbox(content, late=2)
    assert list(box.take(["question"], 5000)) == []  # its parts are not there yet
    assert list(box.take(["question"], 5000)) == []
    (reply,) = box.take(["question"], 5000)
    np.testing.assert_array_equal(reply.message.content[wire.UPDATE]["0"].numpy(), np.arange(5))
    assert len(superlink.confirmed) == 1


def test_zeros_that_take_little_on_the_wire_are_not_expanded(monkeypatch):
    """A few megabytes that would be forty: one chunk, eight times over."""
    zeros = RecordDict({wire.UPDATE: ArrayRecord([np.zeros(10**7, np.float32)])})
    parts = {k: len(v.deflate()) for k, v in get_all_nested_objects(message_of(zeros)).items()}
    assert sum(parts.values()) < 14_000_000
    monkeypatch.setattr(Array, "inflate", lambda *_, **__: pytest.fail("it was expanded"))
    box, superlink = inbox(zeros)
    (reply,) = box.take(["question"], 2 * 10**7)
    assert reply.message is None
    assert reply.fault.startswith("its arrays have 40,")
    assert len(superlink.confirmed) == 1  # the SuperLink need not keep it


def test_a_reply_that_is_larger_than_the_model_allows_is_not_taken_whole():
    box, _ = inbox(RecordDict({wire.UPDATE: ArrayRecord([np.random.default_rng(0).random(10**6)])}))
    (reply,) = box.take(["question"], 1000)
    assert reply.fault == f"it has more than {1000 + OVERHEAD:,} bytes"


def test_a_reply_that_never_ends_is_not_waited_for(monkeypatch):
    """A device dies while it sends: its round ends at the deadline all the same."""
    _, superlink = inbox(RecordDict({wire.UPDATE: ArrayRecord([np.zeros(3)])}), late=10**9)
    grid = SimpleNamespace(
        _runtime_client=superlink,
        node=Node(node_id=1),
        run=SimpleNamespace(run_id=1),
        push_messages=lambda messages: ["question" for _ in messages],
    )
    now = [100.0]
    monkeypatch.setattr(link.time, "monotonic", lambda: now[0])
    there = Link(grid)
    assert there.send("train", {7: RecordDict()}, 20.0) == {7: "question"}
    now[0] += 20.0
    assert list(there.take(["question"], 5000)) == []
    now[0] += link.SECONDS_OVERDUE + 1
    (answered,) = there.take(["question"], 5000)
    assert (answered.asked, answered.content) == ("question", None)
    assert answered.fault == "it did not answer in time"
    assert list(there.take(["question"], 5000)) == []  # told once


def test_metrics_of_many_numbers_are_evaluated(data, model):
    """A row of numbers for each metric and split, more of them than the overhead of a message."""
    wide = fedmom.Metric(
        "wide", lambda out, _: jax.numpy.ones((len(out), 9000)), lambda s: s[..., 0]
    )
    runtime = devices(work(data, model._replace(metrics=(*model.metrics, wide))))
    take = runtime._link.take

    def as_on_the_wire(asked, most):
        for answered in take(asked, most):
            assert wire.size_of(answered.content) <= most + OVERHEAD
            yield answered

    runtime._link.take = as_on_the_wire
    scores = runtime.evaluate(model_at(model), "train")
    np.testing.assert_array_equal(scores.sums["wide"][:, 0], data.train.size)


def test_a_loss_of_sums_and_counts_is_evaluated(data, model):
    """As on this machine; a device that tells anything else for it is left out."""

    def pairs(out, y):
        return model.loss(out, y) * (1 + y), 1.0 + y

    own = work(data, model._replace(loss=pairs))
    runtime, params = devices(own), model_at(model)
    expected = LocalRuntime(own).evaluate(params, "train").sums["loss"]
    np.testing.assert_allclose(runtime.evaluate(params, "train").sums["loss"], expected, rtol=1e-6)
    whole = expected.sum(0)
    assert fedmom.evaluate(runtime, params, "train").loss == pytest.approx(whole[0] / whole[1])
    take = runtime._link.take

    def wrong(asked, most):
        for number, answered in enumerate(take(asked, most)):
            if number == 0:
                answered.content[wire.FACTS]["train/sum/loss"] = [1.0]
            yield answered

    runtime._link.take = wrong
    assert len(runtime.evaluate(params, "train").samples) == data.clients - 1


def test_a_run_says_whom_it_asks_again_and_why(capsys):
    kept = []
    news = News(kept.append, ["device-1", "device-2"])
    news({"event": "failed", "client": 1, "round": 3, "reason": "it is offline"})
    assert capsys.readouterr().out == ""  # the round's own line may tell it
    news({"event": "failed", "client": 0, "round": 4, "reason": "ValueError on the device"})
    news({"event": "repeated", "round": 4, "clients": [0], "reason": "0 of at least 1 replies"})
    said = capsys.readouterr().out
    assert "Round 4: 0 of at least 1 replies; device-1: ValueError on the device. Asking" in said
    news({"event": "failed", "client": 1, "reason": "it has gone offline"})
    news({"event": "no scores", "reason": "no device has evaluated"})
    assert "no device has evaluated; device-2: it has gone offline." in capsys.readouterr().out
    assert len(kept) == 5


def test_devices_are_met_and_remembered(data, model):
    runtime = devices(work(data, model))
    said = []
    found = meet(Link(runtime.grid), DeviceOptions(4), said.append)
    assert found.train.size.tolist() == [5, 9, 3, 7]
    assert found.test.size.tolist() == [2, 0, 1, 4]
    assert found.users == ["device-100", "device-101", "device-102", "device-103"]
    assert found.features == data.features
    again = from_json(to_json(found))
    assert (again.run, again.devices, again.features) == (found.run, found.devices, found.features)
    assert said == ["4 devices take part: device-100, device-101, device-102, device-103."]


def test_a_claim_that_cannot_be_is_not_believed(data, model):
    runtime = devices(work(data, model))
    said = []
    found = meet(Link(runtime.grid), DeviceOptions(2, max_samples=6), said.append)
    assert found.train.size.tolist() == [5, 3]
    assert "it claims 9 training and 0 test samples; believed are 1 to 6" in " ".join(said)


def test_labels_that_only_some_devices_have_count_for_all(data, model):
    owners = devices(work(data, model)).owners
    more = owners[101]._replace(
        data=lambda: replace(owners[100].data(), features=Features("vector", (4,), 7))
    )
    grid = LoopGrid({100: partial(answer, owner=owners[100]), 101: partial(answer, owner=more)})
    assert meet(Link(grid), DeviceOptions(2), lambda _: None).features.classes == 7


def test_a_damaged_list_of_devices_is_refused():
    with pytest.raises(FedMomError, match=r"devices\.json.*damaged"):
        from_json(json.dumps({"run": "ab"}).encode())


@pytest.mark.parametrize("wrong", [{"devices": 0}, {"least": 0}, {"deadline": 0.0}])
def test_options_that_make_no_sense_are_refused(wrong):
    with pytest.raises(FedMomError, match=f"flower: {next(iter(wrong))}="):
        DeviceOptions(**wrong).checked()


def test_without_devices_the_runtime_says_how_it_is_started(data, model):
    with pytest.raises(FedMomError, match="fedmom deploy run"):
        fedmom.RUNTIMES.build("flower:deadline=5", work(data, model))


def test_a_checkpoint_of_an_earlier_version_with_work_under_way_resumes(data, model):
    """Devices used to write each question by itself."""
    params = model_at(model)
    old = {"asked/0/question": np.array([2, 1]), "asked/1/question": np.array([1, 1])}
    leaves = {f"broadcast/{i}": np.asarray(x) for i, x in enumerate(jax.tree.leaves(params))}
    old |= {f"asked/{n}/{name}": leaf for n in (0, 1) for name, leaf in leaves.items()}
    runtime, expected = devices(work(data, model)), devices(work(data, model))
    runtime.restore(fedmom.Snapshot(old), params)
    assert runtime.under_way() == [(2, 1), (1, 1)]
    expected.ask(1, np.array([2, 1]), params)
    close(by_client(runtime.replies()), by_client(expected.replies()))


def test_blocks_come_from_replies(data, model):
    runtime = devices(work(data, model))
    runtime.ask(0, np.array([2]), model_at(model))
    (block,) = list(runtime.replies())
    assert isinstance(block, Block)
    assert block.samples.tolist() == [3]


@pytest.mark.parametrize("told", [-2.4e6, 2.4e300])
def test_a_device_whose_loss_cannot_be_is_left_out_of_an_evaluation(data, model, told):
    """Losses of -2.4e6 and 2.4e305 used to be believed."""
    own = work(data, model)
    runtime, params = devices(own), model_at(model)
    honest = fedmom.evaluate(devices(own), params, "train").loss
    take = runtime._link.take

    def wrong(asked, most):
        for number, answered in enumerate(take(asked, most)):
            if number == 0:
                answered.content[wire.FACTS]["train/sum/loss"] = told
            yield answered

    runtime._link.take = wrong
    assert len(runtime.evaluate(params, "train").samples) == data.clients - 1
    runtime._link.take = take
    assert fedmom.evaluate(runtime, params, "train").loss == pytest.approx(honest, rel=1e-5)


def met(name, classes=3, shape=(4,), names=None):
    schema = Schema(kind="vector", shape=shape, dtype="float32", classes=classes, class_names=names)
    return Device(f"key of {name}", name, 10, 0), schema


def names_of(found):
    return [device.name for device, _ in found]


def test_a_device_with_other_data_than_most_is_named_and_left_out():
    said = []
    found = [met("ann"), met("bob", shape=(5,)), met("cy", classes=7)]
    kept, schema = agreed(found, 1000, said.append)
    assert (names_of(kept), schema.shape, schema.classes) == (["ann", "cy"], (4,), 7)
    (text,) = said
    assert text.startswith(
        "bob does not take part: The data of ann (key of a) and of bob (key of b"
    )
    assert "start its program again, or delete its key" in text


def test_devices_that_agree_two_by_two_only_are_told_apart():
    """Names of digits fit numbers and other names, which do not fit each other."""
    found = [met("ann", 2, names=("1", "2")), met("bob"), met("cy", 2, names=("no", "yes"))]
    said = []
    kept, _ = agreed(found, 1000, said.append)
    assert names_of(kept) == ["ann", "bob"]
    assert "cy does not take part" in said[0]


@pytest.mark.parametrize("shapes", [[4, 5], [4, 5, 6], [4, 4, 5, 5]])
def test_without_a_majority_nobody_is_believed(shapes):
    found = [met(f"device-{n}", shape=(size,)) for n, size in enumerate(shapes)]
    with pytest.raises(
        FedMomError, match=r"device-\d .* No kind of data is that of more than half"
    ):
        agreed(found, 1000, lambda _: None)


@pytest.mark.parametrize(
    ("claims", "kept"),
    [
        ([3, 1000, 3], [3, 1000, 3]),
        ([3, 1001, 3], [3, 3]),
        ([3, 200_000, 200_000], [3, 200_000, 200_000]),  # most say so
        ([3, 200_000], [3]),
    ],
)
def test_classes_that_only_one_device_claims_are_bounded(claims, kept):
    said = []
    found = [met(f"device-{n}", classes=count) for n, count in enumerate(claims)]
    taken, schema = agreed(found, 1000, said.append)
    assert [device_schema.classes for _, device_schema in taken] == kept
    assert schema.classes == max(kept)
    assert len(said) == len(claims) - len(kept)
    assert all("claims" in text and "raise max_classes" in text for text in said)


@pytest.mark.parametrize(("others", "said"), [([5, 7], 0), ([5, 3], 1)])
def test_a_claim_that_outweighs_all_others_is_told(others, said):
    texts = []
    found = [Device(name, name, size, 0) for name, size in zip("abc", [9, *others], strict=True)]
    _tell_heavy(found, texts.append)
    assert [text.startswith("a claims 9 of 17 training samples") for text in texts] == [True] * said


@pytest.mark.usefixtures("_no_pauses")
def test_a_round_that_lacks_useless_answers_only_is_not_repeated_for_ever(data, model):
    """Each of the three is needed, and one of them sends a wrong type whenever it is asked."""

    def change(reply):
        return spoiled(BAD["wrong type"])(reply) if reply.metadata.src_node_id == 101 else reply

    runtime = devices(work(data, model), change=change, least=3)
    events = []
    runtime._link.journal = events.append
    runtime.ask(0, np.array([0, 1, 2]), model_at(model))
    answers = iter(runtime.replies())
    assert {int(next(answers).clients[0]) for _ in range(2)} == {0, 2}
    sentence = "Round 1 has 2 of at least 3 replies, .* 3 times in a row .device-1: it has an array"
    with pytest.raises(BadReplyError, match=sentence):
        next(answers)
    assert sum(event["event"] == "repeated" for event in events) == device_runtime.FRUITLESS - 1


@pytest.mark.usefixtures("_no_pauses")
def test_a_device_whose_answers_are_useless_is_set_aside_and_tried_again(data, model, monkeypatch):
    bad = {101}

    def change(reply):
        return spoiled(BAD["wrong type"])(reply) if reply.metadata.src_node_id in bad else reply

    now = [1000.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], time=lambda: 0.0, sleep=lambda _: None)
    monkeypatch.setattr(device_runtime, "time", clock)
    runtime = devices(work(data, model), change=change)

    def round_(number):
        runtime.ask(number, np.array([0, 1]), model_at(model))
        found = list(runtime.replies())
        return {f.client: f.reason for f in found if isinstance(f, Failure)}

    for number in range(device_runtime.FRUITLESS):
        assert "float64" in round_(number)[1]
    assert round_(3)[1] == "it is set aside: 3 answers in a row could not be used"
    now[0] += device_runtime.SECONDS_ASIDE
    assert "float64" in round_(4)[1]  # tried once more
    assert "set aside" in round_(5)[1]
    now[0] += device_runtime.SECONDS_ASIDE
    bad.clear()
    assert round_(6) == round_(7) == {}


@pytest.mark.usefixtures("_no_pauses")
def test_a_model_that_nobody_can_evaluate_ends_the_run(data, model):
    def nothing(_):
        return RecordDict({wire.FACTS: MetricRecord({"train/evaluated": 1})})

    runtime = devices(work(data, model), change=spoiled(nothing))
    with pytest.raises(BadReplyError, match=r"No device could evaluate .*device-0: it evaluated 1"):
        runtime.evaluate(model_at(model), "train")
