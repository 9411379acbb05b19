"""The bounds of the data path have one list, and each has a setting of its name; otherwise nothing starts."""

from __future__ import annotations

import re

import pytest
from pydantic import BaseModel

from broker.config import data_path
from broker.config.limits import Limits as Bounds
from broker.config.loading import load
from broker.config.protocol import Protocol
from broker.config.settings import ConfigError, QueueRule, Settings
from broker.testing import Mqttd
from pyx.core.limits import Limits
from tests.broker_process import KIND
from tests.unit.broker.cli.test_cli import Mqttd as Command
from tests.unit.broker.cli.test_cli import mqttd
from tests.wire import Client

__all__ = ["mqttd"]

MODELS: dict[str, type[BaseModel]] = {"limits": Bounds, "protocol": Protocol, "": Settings}


def test_every_field_has_the_value_of_its_setting() -> None:
    """Each setting has a value that differs from its default."""
    changed = {}
    for name, source in data_path.sources(data_path.fields(), MODELS).items():
        value = source.value(Settings())
        changed[source] = (name, not value if isinstance(value, bool) else value - 1 if value == 2 else value + 1)
    limits, protocol, own = (
        {source.key: value / source.factor for source, (_, value) in changed.items() if source.table == table}
        for table in ("limits", "protocol", "")
    )
    settings = Settings.model_validate(
        {"limits": whole(limits), "protocol": whole(protocol), **whole(own)}, strict=False
    )
    filled = data_path.fill(Limits(), settings)
    assert {name: getattr(filled, name) for name, _ in changed.values()} == dict(changed.values())
    assert len(changed) == len(data_path.fields()) > 30


def whole(values: dict[str, float]) -> dict[str, float]:
    """Return the values with whole floats as integers."""
    return {key: int(value) if value == int(value) else value for key, value in values.items()}


@pytest.mark.parametrize("misspelt", ["queue_mesages_max", "hold_second_max", "hold_ms_least", "packet_bytes_max_"])
def test_a_misspelt_field_is_an_error(misspelt: str) -> None:
    with pytest.raises(LookupError, match=re.escape(f"pyx.core.limits.Limits.{misspelt} is the name of no setting")):
        data_path.sources(["packet_bytes_max", misspelt], MODELS)


def test_a_name_of_two_settings_is_an_error() -> None:
    with pytest.raises(LookupError, match="more than one"):
        data_path.sources(["maximum_qos"], {**MODELS, "other": Protocol})


def test_a_broker_with_a_misspelt_bound_does_not_start(mqttd: Command) -> None:
    """A field of the data path without a setting ends the start before any client is served."""
    program = "import sys, broker.config.data_path as d; d.fields = lambda: ['packet_bytes_max', 'outbox_byte_max']\n"
    command = mqttd("--port", "0", "--workers", "2", "--store", "memory", program=program)
    assert command.status() != 0
    assert "pyx.core.limits.Limits.outbox_byte_max is the name of no setting" in command.err()
    assert command.out() == ""


def test_what_the_data_path_cannot_count_is_refused() -> None:
    """A queue_messages_max of 2^32 once ended every worker, at its start and at a reload."""
    for setting in ("limits.queue_messages_max", "limits.half_open_per_address_max"):
        with pytest.raises(ConfigError) as error:
            load(None, {f"MQTTD_{setting.upper().replace('.', '__')}": str(2**32)})
        assert error.value.lines[0].startswith(f"{setting}: input should be less than or equal to 4294967295, not")
    with pytest.raises(ValueError, match="4294967295"):
        QueueRule(filter="a/#", full="hold", messages_max=2**32)


@pytest.mark.skipif(KIND == "mosquitto", reason="these are bounds of mqttd")
def test_the_highest_bounds_that_the_configuration_takes_are_served_with() -> None:
    highest = {
        name: bound.le
        for name, field in Bounds.model_fields.items()
        for bound in field.metadata
        if field.annotation is int and hasattr(bound, "le")
    }
    del highest["tick_connection_bytes_max"]  # it is the size of a buffer
    assert len(highest) > 40
    with Mqttd(2, {"limits": {**highest, "session_expiry_seconds_max": 0}}) as broker:
        client = Client(broker.address, 5)
        client.connect("x")
        client.subscribe(("a", 1))
        client.publish("a", b"x", qos=1)
        client.receive("a", b"x")
        client.close()
