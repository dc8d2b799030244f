"""Secrets stay out of the command line, of what a run writes down, and of what loggers are told."""

from typing import Any, ClassVar

import pytest
from lightning.pytorch.loggers import CSVLogger

from << cookiecutter.package_name >>.configuration import ConfigError
from << cookiecutter.package_name >>.masking import mask, masked, refuse_secrets

QUICK = ("model=mlp", "export=null", "trainer.max_epochs=1", "trainer.limit_train_batches=2")
KEY = "5f3a99c0d1e2f3a4b5c6"


class Told(CSVLogger):
    passwords: ClassVar[list[str]] = []

    def __init__(self, password: str, notes: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        assert password in notes
        self.passwords.append(password)


@pytest.mark.parametrize(
    "name", ["api_key", "hub_token", "apiKey", "client_secret", "password", "AWS_SECRET_ACCESS_KEY"]
)
def test_a_secret_that_was_typed_is_refused_and_not_repeated(name, here, tmp_path):
    done = here("train", f"+logger.wandb.{name}={KEY}", f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 2
    assert f"logger.wandb.{name} is a secret" in done.stderr
    assert f"Try 'logger.wandb.{name}=${{oc.env:{name.upper()}}}'." in done.stderr
    assert KEY not in done.stdout + done.stderr
    assert not (tmp_path / "run").exists()


def test_what_only_sounds_like_a_secret_is_none():
    config = {"class_token": True, "max_tokens": 8, "token": None, "tokenizer": "words-1000", "key": "value-1000"}
    refuse_secrets(config)
    assert masked(config) == config


def test_a_secret_deep_in_a_configuration_is_found_by_its_whole_name():
    with pytest.raises(ConfigError, match=r"^logger\.mlflow\.client\.password is a secret"):
        refuse_secrets({"logger": {"mlflow": {"client": {"password": "x"}}}})


def test_a_secret_out_of_the_environment_reaches_what_uses_it_and_no_file(here, tmp_path, monkeypatch):
    monkeypatch.setenv("HUB_PASSWORD", KEY)
    monkeypatch.setattr(Told, "passwords", [])
    told = f"_target_: {__name__}.Told, version: seen, password: '${{oc.env:HUB_PASSWORD}}'"
    # Under a name that does not say what it is, and in the midst of other text.
    told = f"+logger.told={{{told}, notes: 'log in with ${{oc.env:HUB_PASSWORD}}'}}"
    done = here("train", *QUICK, "logger=csv", told, f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 0, done.stderr
    assert Told.passwords == [KEY]
    written = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert any(b"HUB_PASSWORD" in content for content in written.values())
    assert any(path.name == "hparams.yaml" for path in written)
    assert [path for path, content in written.items() if KEY.encode() in content] == []
    assert KEY not in done.stdout + done.stderr


def test_the_environments_secrets_are_masked_wherever_they_stand(monkeypatch):
    monkeypatch.setenv("HUB_TOKEN", KEY)
    monkeypatch.setenv("HUB_SECRET", f"{KEY}-and-more")
    monkeypatch.setenv("DB_PASSWORD", "torch.nn")
    config = {"a": [{"notes": f"<{KEY}>", "n": 3}, f"{KEY}-and-more"], "net": {"_target_": "torch.nn.Linear"}}
    assert masked(config) == {"a": [{"notes": "<***>", "n": 3}, "***"], "net": {"_target_": "torch.nn.Linear"}}


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("train.py '+x.api_key=abcd1234efgh' seed=1", "train.py '+x.api_key=***' seed=1"),
        ('+    api_key = "abcd1234efgh"', '+    api_key = "***"'),
        ("+  password: abcd1234efgh", "+  password: ***"),
        (f"git clone https://me:{KEY}@host/x", "git clone https://me:***@host/x"),
        # Code stays as it is: a diff is kept to repeat the run.
        ("+    token = tokenize2(x_12345678)", "+    token = tokenize2(x_12345678)"),
        ("+    token = self.class_token", "+    token = self.class_token"),
    ],
)
def test_secrets_are_hidden_in_commands_and_changes(text, hidden, monkeypatch):
    monkeypatch.setenv("HUB_TOKEN", KEY)
    monkeypatch.setenv("SHORT_TOKEN", "git")
    assert mask(text) == hidden
