"""The client of the metadata service: tokens, outages, and what is no metadata service at all."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from convoy.drills.testbed.imds import TOKEN, ImdsStandIn, Reply, Request
from convoy.gang.notices.imds import ENDPOINT, ENDPOINT_IPV6, Imds
from convoy.gang.notices.notice import NoAnswer

TYPE = "meta-data/instance-type"
PUT = Request("PUT", TOKEN, 200)
GOT = Request("GET", TYPE, 200)


@pytest.fixture
def server() -> Iterator[ImdsStandIn]:
    with ImdsStandIn() as stand_in:
        yield stand_in


@pytest.fixture
def imds(server: ImdsStandIn) -> Imds:
    return Imds({"AWS_EC2_METADATA_SERVICE_ENDPOINT": server.url}, timeout_seconds=0.3)


def refused(imds: Imds, path: str = TYPE) -> str:
    with pytest.raises(NoAnswer) as caught:
        imds.get(path)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_an_answer_has_the_text_and_the_service_s_time(imds: Imds) -> None:
    answer = imds.get(TYPE)
    assert answer is not None
    assert answer.text == "p5.48xlarge"
    assert answer.server_time == pytest.approx(time.time(), abs=2)


def test_one_token_serves_many_questions(imds: Imds, server: ImdsStandIn) -> None:
    for _ in range(3):
        imds.get(TYPE)
    assert server.requests == [PUT, GOT, GOT, GOT]


def test_a_forgotten_token_is_replaced_at_once(imds: Imds, server: ImdsStandIn) -> None:
    imds.get(TYPE)
    server.forget_tokens()
    assert imds.get(TYPE) is not None
    assert server.requests == [PUT, GOT, Request("GET", TYPE, 401), PUT, GOT]


def test_a_service_that_refuses_every_token_is_asked_twice_and_no_more(imds: Imds, server: ImdsStandIn) -> None:
    server.set_reply(TYPE, Reply(status=401))
    assert refused(imds) == f"{server.url}: answered 401 to GET {TYPE}"
    assert server.requests == [PUT, Request("GET", TYPE, 401), PUT, Request("GET", TYPE, 401)]


@pytest.mark.parametrize("status", [403, 404, 405, 500])
def test_without_a_token_nothing_is_asked_for(imds: Imds, server: ImdsStandIn, status: int) -> None:
    server.set_reply(TOKEN, Reply(status=status))
    assert refused(imds) == f"{server.url}: answered {status} to the question for a token"
    assert [asked.method for asked in server.requests] == ["PUT"]


@pytest.mark.parametrize("status", [301, 400, 403, 429, 500, 503])
def test_an_error_is_told_and_forgotten(imds: Imds, server: ImdsStandIn, status: int) -> None:
    server.set_reply(TYPE, Reply(status=status))
    assert refused(imds) == f"{server.url}: answered {status} to GET {TYPE}"
    server.set_reply(TYPE, Reply("back"))
    answer = imds.get(TYPE)
    assert answer is not None
    assert answer.text == "back"


def test_a_slow_service_is_waited_for_no_longer_than_the_timeout(imds: Imds, server: ImdsStandIn) -> None:
    imds.get(TYPE)
    server.set_reply(TYPE, Reply("late", delay_seconds=2))
    began = time.monotonic()
    assert refused(imds) == f"{server.url}: no answer within 0.3 s"
    assert time.monotonic() - began < 1.9


def test_a_service_whose_tokens_do_not_arrive_is_told_with_the_usual_reason(imds: Imds, server: ImdsStandIn) -> None:
    server.set_reply(TOKEN, Reply(delay_seconds=2))
    assert refused(imds) == (
        f"{server.url}: no answer within 0.3 s; in a container the instance's metadata hop limit must be at least 2"
    )


def test_no_service_at_all_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    imds = Imds({"AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://127.0.0.1:{port}"})
    assert refused(imds) == f"http://127.0.0.1:{port}: cannot be reached ([Errno 111] Connection refused)"


def test_something_that_is_not_http_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(5)
        port = listener.getsockname()[1]
        imds = Imds({"AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://127.0.0.1:{port}"})

        def greet() -> None:
            connection, _ = listener.accept()
            connection.recv(1000)
            connection.sendall(b"220 smtp ready\r\n")
            connection.close()

        greeter = threading.Thread(target=greet)
        greeter.start()
        assert "BadStatusLine" in refused(imds)
        greeter.join(5)


def test_a_page_that_answers_everything_is_not_taken_for_the_service(imds: Imds, server: ImdsStandIn) -> None:
    """Such as the login page of a network."""
    server.answer = lambda *_: (Reply("<html>\n<p>Please log in</p>\n</html>"), {})  # type: ignore[method-assign]
    assert refused(imds) == f"{server.url}: is no metadata service: what it gave is no token"


def test_it_is_not_asked_where_the_environment_says_so(server: ImdsStandIn) -> None:
    environ = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": server.url, "AWS_EC2_METADATA_DISABLED": "True"}
    assert refused(Imds(environ)) == "AWS_EC2_METADATA_DISABLED = true"
    assert server.requests == []


@pytest.mark.parametrize(
    "endpoint", ["169.254.169.254", "localhost:1338", "https://169.254.169.254", "http://", "http://a:port", "[", "/x"]
)
def test_an_endpoint_that_is_none_is_told(endpoint: str) -> None:
    line = f"AWS_EC2_METADATA_SERVICE_ENDPOINT = {endpoint}: must be a URL such as {ENDPOINT}"
    assert refused(Imds({"AWS_EC2_METADATA_SERVICE_ENDPOINT": endpoint})) == line


@pytest.mark.parametrize(
    ("environ", "endpoint"),
    [
        ({}, ENDPOINT),
        ({"AWS_EC2_METADATA_DISABLED": "false", "AWS_EC2_METADATA_SERVICE_ENDPOINT": ""}, ENDPOINT),
        ({"AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE": "IPv6"}, ENDPOINT_IPV6),
        ({"AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://h:1/"}, "http://h:1"),
        (
            {"AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE": "IPv6", "AWS_EC2_METADATA_SERVICE_ENDPOINT": "http://h:1"},
            "http://h:1",
        ),
    ],
)
def test_it_is_asked_where_boto_would_ask(environ: dict[str, str], endpoint: str) -> None:
    assert Imds(environ)._url() == endpoint


def test_proxies_are_not_used(imds: Imds, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert imds.get(TYPE) is not None
