"""What the environment says of a run's processes is checked before one of them could wait for another."""

import re
import socket

import pytest

from << cookiecutter.package_name >>.configuration import ConfigError, check_launcher
from << cookiecutter.package_name >>.machine import check_port, count_processes

DDP = ("trainer=ddp", "trainer.accelerator=cpu")
TWO_PROCESSES = (*DDP, "trainer.devices=2")
SLURM = {"SLURM_NTASKS": "2", "SLURM_PROCID": "1", "SLURM_JOB_ID": "7"}


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def given(monkeypatch):
    """Put variables into the environment: `given(RANK="1")`."""

    def put(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return put


@pytest.fixture
def taken():
    """Give a port at which another program listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


WRONG = [
    ({"RANK": "abc"}, "RANK=abc stands in the environment. A whole number is allowed. Try: unset RANK"),
    ({"RANK": ""}, "RANK= stands in the environment. A whole number is allowed. Try: unset RANK"),
    ({"LOCAL_RANK": "x"}, "LOCAL_RANK=x stands in the environment. A whole number is allowed. Try: unset LOCAL_RANK"),
    ({**SLURM, "SLURM_PROCID": "x"}, "SLURM_PROCID=x stands in the environment. A whole number is allowed. Try: unset"),
    ({"SLURM_NTASKS": "abc"}, "SLURM_NTASKS=abc stands in the environment. A whole number is allowed. Try: unset"),
    (
        {"SLURM_NTASKS": "2", "SLURM_PROCID": "0"},
        "SLURM_NTASKS=2 and SLURM_PROCID=0 stand in the environment without SLURM_JOB_ID. srun sets all three. "
        "Try: unset SLURM_NTASKS SLURM_PROCID",
    ),
    (
        {"LOCAL_RANK": "1"},
        "LOCAL_RANK=1 stands in the environment, and no launcher started this process: it sets TORCHELASTIC_RUN_ID or "
        "WORLD_SIZE or SLURM_NTASKS, too. Try: unset LOCAL_RANK",
    ),
    ({"RANK": "1", "LOCAL_RANK": "1"}, "Try: unset RANK LOCAL_RANK"),
]


@pytest.mark.parametrize(("variables", "told"), WRONG)
def test_a_door_names_the_variable_that_cannot_be_so(variables, told, given, here, tmp_path):
    given(**variables)
    done = here("train", "debug=smoke", f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["train", "eval", "export"])
def test_a_variable_that_is_no_number_ends_every_door_before_a_library_reads_it(name, door):
    done = door(name, *([] if name == "train" else ["checkpoint=logs/latest"]), RANK="abc")
    assert done.returncode == 2
    assert done.stderr.strip().startswith("Error: RANK=abc stands in the environment.")


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"LOCAL_RANK": "0"},
        {"LOCAL_RANK": "1", "TRAINING_RUN_DIR": "/tmp/run"},
        {"LOCAL_RANK": "1", "RANK": "3", "WORLD_SIZE": "4"},
        {"LOCAL_RANK": "1", "TORCHELASTIC_RUN_ID": "job"},
        SLURM,
        {"SLURM_NTASKS": "1", "SLURM_PROCID": "0"},
    ],
)
def test_what_launchers_set_is_taken(variables, given):
    given(**variables)
    check_launcher()


def test_a_taken_port_is_told_before_a_process_is_started(taken, given, here, tmp_path):
    given(MASTER_PORT=str(taken))
    done = here("train", "debug=smoke", *TWO_PROCESSES, f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 2
    assert f"MASTER_PORT={taken} stands in the environment" in done.stderr
    assert "cannot meet there: Address already in use." in done.stderr
    assert "Try: unset MASTER_PORT" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("port", "told"),
    [("0", "it is no port"), ("70000", "it is no port"), ("http", "MASTER_PORT=http stands in the environment.")],
)
def test_what_is_no_port_is_told(port, told, given, compose):
    given(MASTER_PORT=port)
    with pytest.raises(ConfigError, match=re.escape(told)):
        check_port(compose(*TWO_PROCESSES).trainer)


def test_one_process_meets_at_the_port_where_its_strategy_makes_it(taken, given, compose):
    given(MASTER_PORT=str(taken))
    check_port(compose("trainer.devices=1").trainer)
    with pytest.raises(ConfigError, match="Address already in use"):
        check_port(compose(*DDP, "trainer.devices=1").trainer)


@pytest.mark.parametrize(
    "variables", [{"LOCAL_RANK": "1"}, {"TORCHELASTIC_RUN_ID": "job"}, {"NODE_RANK": "1"}, {"SLURM_NTASKS": "2"}]
)
def test_a_port_at_which_another_process_listens_for_this_one_is_right(variables, taken, given, compose):
    given(MASTER_PORT=str(taken), **variables)
    check_port(compose(*TWO_PROCESSES).trainer)


def test_a_port_that_is_free_is_taken(taken, given, compose):
    with socket.create_server(("", 0)) as server:
        free = server.getsockname()[1]
    given(MASTER_PORT=str(free))
    check_port(compose(*TWO_PROCESSES).trainer)


@pytest.mark.parametrize(
    ("devices", "number"), [("2", 2), ("'2'", 2), ("'0,1,3'", 3), ("'2,'", 1), ("[0,1]", 2), ("1", 1)]
)
def test_devices_are_counted_however_they_are_written(devices, number, compose):
    assert count_processes(compose(f"trainer.devices={devices}", "trainer.num_nodes=2").trainer) == 2 * number


def test_devices_that_are_none_are_told(here, tmp_path):
    done = here("train", "debug=smoke", "trainer.devices=both", f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 2
    assert "trainer.devices=both names no devices." in done.stderr
