"""Commands write below the folder they are called in: one of their own."""

import pytest


@pytest.fixture(autouse=True)
def _in_tmp(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
