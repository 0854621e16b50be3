"""Load reports with responses over HTTP: which get one, and what it costs those that do not."""

from pathlib import Path

import pytest
from puppet_server import Stage, infer, request, stage

from modserve.core.statistics.load_report import LoadReport
from modserve.frontends.http.wire import reports
from modserve.settings import HttpSettings

REPORT = LoadReport(0.5, 0.25, 0.75, 10.0, 1.0, {})
HEADER = "endpoint-load-metrics"
TEXT = "TEXT cpu_utilization=0.5, mem_utilization=0.25, application_utilization=0.75, rps_fractional=10, eps=1"
CALLS = {"inference": infer(), "probe": request("GET", "/v2/health/ready"), "failure": request("GET", "/nosuch")}


def options_of(orca: str) -> HttpSettings:
    return HttpSettings(orca=orca)  # type: ignore[arg-type]


def report(on: Stage, orca: str, load: LoadReport = REPORT) -> None:
    on.site.report_load(*reports.lines(load, orca))


@pytest.mark.parametrize("call", CALLS)
async def test_each_response_has_the_latest(tmp_path: Path, call: str) -> None:
    async with stage(tmp_path, None, options=options_of("text")) as on:
        client = on.connect()
        client.send(CALLS[call])
        assert HEADER not in (await client.receive())[0].headers
        report(on, "text")
        client.send(CALLS[call])
        assert (await client.receive(2))[1].headers[HEADER] == TEXT
        report(on, "text", REPORT._replace(eps=2.0))
        client.send(CALLS[call])
        assert (await client.receive(3))[2].headers[HEADER] == TEXT[:-1] + "2"


async def test_the_date_stays(tmp_path: Path) -> None:
    async with stage(tmp_path, None, options=options_of("json")) as on:
        report(on, "json")
        client = on.connect()
        client.send(infer())
        headers = (await client.receive())[0].headers
        assert headers["date"].endswith(" GMT")
        assert headers[HEADER].startswith('JSON {"cpu_utilization":0.5,')


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(("form", "word"), [("text", "TEXT"), ("json", "JSON"), ("bin", "BIN")])
async def test_those_who_ask_get_the_format_that_they_want(tmp_path: Path, call: str, form: str, word: str) -> None:
    """As of Triton, which knows text and json."""
    async with stage(tmp_path, None, options=options_of("request")) as on:
        report(on, "request")
        client = on.connect()
        ask = CALLS[call].replace(b"\r\n\r\n", b"\r\nEndpoint-Load-Metrics-Format: " + form.encode() + b"\r\n\r\n", 1)
        client.send(ask, CALLS[call], ask)
        first, second, third = await client.receive(3)
        assert first.headers[HEADER].startswith(word + " ")
        assert third.headers[HEADER] == first.headers[HEADER]
        assert HEADER not in second.headers


async def test_a_format_that_nobody_knows(tmp_path: Path) -> None:
    async with stage(tmp_path, None, options=options_of("request")) as on:
        report(on, "request")
        client = on.connect()
        client.send(infer().replace(b"\r\n\r\n", b"\r\nendpoint-load-metrics-format: xml\r\n\r\n", 1))
        answer = (await client.receive())[0]
        assert (answer.status, HEADER in answer.headers) == (200, False)


@pytest.mark.parametrize("orca", ["off", "text"])
async def test_whoever_asks_where_that_is_off(tmp_path: Path, orca: str) -> None:
    """The header is none that the server looks at."""
    async with stage(tmp_path, None, options=options_of(orca)) as on:
        ask = infer().replace(b"\r\n\r\n", b"\r\nendpoint-load-metrics-format: json\r\n\r\n", 1)
        client = on.connect()
        client.send(ask)
        assert HEADER not in (await client.receive())[0].headers
