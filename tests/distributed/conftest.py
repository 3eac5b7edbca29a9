import pytest


@pytest.fixture(autouse=True)
def token(monkeypatch):
    """Jobs of tests have a token of their own, and leave the user's alone."""
    monkeypatch.setenv("JFLUID_PS_TOKEN", "a-token-of-tests-of-jobs")
