"""Numbers that no run can reach are refused with a sentence, before anything is written."""

import pytest

from fedmom.experiments import build, settings
from tests.cli.command import main, words

DIGITS = "9" * 30
LARGE = [
    (["--local-steps=4294967296"], "local-steps = '4294967296': must be a whole number from 1 to"),
    (["--local-steps=1e308"], "must be a whole number from 1 to 2147483647"),
    (["--local-epochs=1e308"], "epochs 1e+308 must be a number greater than 0, at most 3.4e+38"),
    (["--local-epochs=1e9"], "local steps in round 1, more than the 2,147,483,647"),
    (["--batch-size=2147483648"], "batch-size = '2147483648': must be a whole number from 1 to"),
    (["--batch-size=2147483647"], "batch-size 2147483647 needs at least 515.4 GB"),
    ([f"--rounds={DIGITS}"], "input should be less than or equal to 2147483647"),
    ([f"--eval-every={DIGITS}"], "input should be less than or equal to 2147483647"),
    ([f"--eval-samples={DIGITS}"], "must be a whole number from 1 to 2147483647, or all"),
    ([f"--clients-per-round={DIGITS}"], "input should be less than or equal to 2147483647"),
    (["--lr=exponential:start=1,rate=1e10"], "rate=1e10 is inf in round 8 of 100"),
    (["--lr=exponential:start=1,rate=1e-10"], "rate=1e-10 is 0 in round 8 of 100"),
    (["--lr=1e-300"], "lr = '1e-300': must be a number from 1.2e-38 to 3.4e+38"),
    (["--server-lr=1e308"], "server-lr = '1e308': must be a number from 1.2e-38 to 3.4e+38"),
    (["--prox=1e300"], "prox = '1e300': input should be less than or equal to 1000000000"),
    (["--lr=exponential:start=1,rate=1e300"], "rate=1e300 is too large for a float of 32 bits"),
    (["--algorithm=fedadam:tau=1e300"], "fedadam: tau=1e300 is too large for a float of 32 bits"),
    (["--lr=inverse:start=inf"], "inverse: start=inf is not a finite number"),
    ([f"--lr=cosine:start=1,rounds={DIGITS}"], "is not between -2,147,483,647 and 2,147,483,647"),
    (["--server-lr=step:start=1,rate=1e30,rounds=10"], "server-lr step:start=1,rate=1e30,rounds"),
    (["--local-steps=exponential:start=1,rate=2"], "local steps in round 39, more than the 2,147"),
    (["--local-epochs=exponential:start=1,rate=9"], "local-epochs exponential:start=1,rate=9"),
    (["--model=mlp:layers=2147483648"], "mlp: layers=2147483648 is not between 1 and 1,000"),
    (["--model=mlp:layers=0"], "mlp: layers=0 is not between 1 and 1,000"),
    (
        ["--model=mlp:hidden=1000000000000"],
        "hidden=1000000000000 is not between 1 and 2,147",
    ),
    (["--model=mlp:hidden=1000000000"], "parameters needs at least 16,000,001,152.0 GB"),
    ([f"--runtime=local:workers={DIGITS}"], "local: workers="),
    (["--pace=over_selected:extra=1e30"], "extra=1e+30 must be a number from 0"),
    (["--pace=synchronous:timeout=1e30"], "timeout=1e+30 must be a number of seconds"),
    (["--algorithm=fedadam:tau=nan"], "fedadam: tau=nan is not a finite number"),
    (["--solver=sgd:momentum=inf"], "sgd: momentum=inf is not a finite number"),
    ([f"--data=shakespeare:roles={DIGITS}"], "shakespeare: roles="),
    ([f"--data=synthetic:seed={DIGITS}"], "is not between 0 and 9,223,372,036,854,775,807"),
    (["--data=synthetic:clients=1000000"], "synthetic:clients=1000000 needs"),
]


@pytest.mark.parametrize(("args", "says"), LARGE, ids=lambda value: str(value)[:50])
def test_numbers_that_no_run_can_reach(monkeypatch, capsys, tmp_path, args, says):
    monkeypatch.setattr("fedmom.core.validation.machine_memory", lambda: 64 * 10**9)
    code, out, err = main(monkeypatch, capsys, "run", "--data=synthetic:clients=3", *args)
    assert (code, out) == (2, ""), err
    assert says in words(err)
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "values",
    [
        {"lr": "cosine:start=0.1,rounds=20"},  # 0 from round 21 on, as it is meant
        {"lr": "cosine:start=0.1,rounds=1000000", "rounds": 1000000},  # 0 in single precision
        {"local-steps": "linear:start=9,end=0,rounds=5"},
        {"lr": "exponential:start=1,rate=0.9", "rounds": 100},
        {"rounds": 1, "lr": "exponential:start=1,rate=1e30"},
        {"local-epochs": 1000},
    ],
    ids=str,
)
def test_what_a_run_can_reach(values):
    build.prepare(settings.parse({"data": "synthetic:clients=3", **values}))


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["compare", f"--seeds={DIGITS}"], "is not in the range x<=10000"),
        (["theory", "estimate", f"--models={DIGITS}"], "is not in the range 1<=x<=10000"),
        (["theory", "bounds", "--L=1e308"], "is not in the range x<=1e+100"),
        (["run", "--config=deep.toml"], "deep.toml is not valid TOML"),
        (["run", "--config=long.toml"], "long.toml is not valid TOML"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_more_of_the_kind(monkeypatch, capsys, tmp_path, args, says):
    (tmp_path / "deep.toml").write_text(f"data = {'[' * 5000}")
    (tmp_path / "long.toml").write_text(f"rounds = {'9' * 5000}")
    code, _, err = main(monkeypatch, capsys, *args)
    assert code == 2
    assert says in words(err)
    assert "Traceback" not in err
