"""The client of the metadata service: tokens, outages, and what is no metadata service at all."""

import socket
import threading
import time

import pytest

from convoy.drills.testbed.imds import TOKEN, ImdsStandIn, Reply, Request
from convoy.gang.notices.imds import ENDPOINT, ENDPOINT_IPV6, Imds
from convoy.gang.notices.notice import NoAnswerError

TYPE = "meta-data/instance-type"
PUT = Request("PUT", TOKEN, 200)
GOT = Request("GET", TYPE, 200)


@pytest.fixture
def client(imds: ImdsStandIn) -> Imds:
    return Imds({"AWS_EC2_METADATA_SERVICE_ENDPOINT": imds.url}, timeout_seconds=0.3)


def refused(client: Imds, path: str = TYPE) -> str:
    with pytest.raises(NoAnswerError) as caught:
        client.get(path)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_an_answer_has_the_text_and_the_service_s_time(client: Imds) -> None:
    answer = client.get(TYPE)
    assert answer is not None
    assert answer.text == "p5.48xlarge"
    assert answer.server_time == pytest.approx(time.time(), abs=2)


def test_one_token_serves_many_questions(client: Imds, imds: ImdsStandIn) -> None:
    for _ in range(3):
        client.get(TYPE)
    assert imds.requests == [PUT, GOT, GOT, GOT]


def test_a_forgotten_token_is_replaced_at_once(client: Imds, imds: ImdsStandIn) -> None:
    client.get(TYPE)
    imds.forget_tokens()
    assert client.get(TYPE) is not None
    assert imds.requests == [PUT, GOT, Request("GET", TYPE, 401), PUT, GOT]


def test_a_service_that_refuses_every_token_is_asked_twice_and_no_more(client: Imds, imds: ImdsStandIn) -> None:
    imds.set_reply(TYPE, Reply(status=401))
    assert refused(client) == f"{imds.url}: answered 401 to GET {TYPE}"
    assert imds.requests == [PUT, Request("GET", TYPE, 401), PUT, Request("GET", TYPE, 401)]


@pytest.mark.parametrize("status", [403, 404, 405, 500])
def test_without_a_token_nothing_is_asked_for(client: Imds, imds: ImdsStandIn, status: int) -> None:
    imds.set_reply(TOKEN, Reply(status=status))
    assert refused(client) == f"{imds.url}: answered {status} to the question for a token"
    assert [asked.method for asked in imds.requests] == ["PUT"]


@pytest.mark.parametrize("status", [301, 400, 403, 429, 500, 503])
def test_an_error_is_told_and_forgotten(client: Imds, imds: ImdsStandIn, status: int) -> None:
    imds.set_reply(TYPE, Reply(status=status))
    assert refused(client) == f"{imds.url}: answered {status} to GET {TYPE}"
    imds.set_reply(TYPE, Reply("back"))
    answer = client.get(TYPE)
    assert answer is not None
    assert answer.text == "back"


def test_a_slow_service_is_waited_for_no_longer_than_the_timeout(client: Imds, imds: ImdsStandIn) -> None:
    client.get(TYPE)
    imds.set_reply(TYPE, Reply("late", delay_seconds=2))
    began = time.monotonic()
    assert refused(client) == f"{imds.url}: no answer within 0.3 s"
    assert time.monotonic() - began < 1.9


def test_a_service_whose_tokens_do_not_arrive_is_told_with_the_usual_reason(client: Imds, imds: ImdsStandIn) -> None:
    imds.set_reply(TOKEN, Reply(delay_seconds=2))
    assert refused(client) == (
        f"{imds.url}: no answer within 0.3 s; in a container the instance's metadata hop limit must be at least 2"
    )


def test_no_service_at_all_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    client = Imds({"AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://127.0.0.1:{port}"})
    assert refused(client) == f"http://127.0.0.1:{port}: cannot be reached ([Errno 111] Connection refused)"


def test_something_that_is_not_http_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(5)
        port = listener.getsockname()[1]
        client = Imds({"AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://127.0.0.1:{port}"})

        def greet() -> None:
            connection, _ = listener.accept()
            connection.recv(1000)
            connection.sendall(b"220 smtp ready\r\n")
            connection.close()

        greeter = threading.Thread(target=greet)
        greeter.start()
        assert "BadStatusLine" in refused(client)
        greeter.join(5)


def test_a_page_that_answers_everything_is_not_taken_for_the_service(client: Imds, imds: ImdsStandIn) -> None:
    """Such as the login page of a network."""
    imds.reply_and_record = lambda *_: (Reply("<html>\n<p>Please log in</p>\n</html>"), {})  # type: ignore[method-assign]
    assert refused(client) == f"{imds.url}: is no metadata service: what it gave is no token"


def test_it_is_not_asked_where_the_environment_says_so(imds: ImdsStandIn) -> None:
    environ = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": imds.url, "AWS_EC2_METADATA_DISABLED": "True"}
    assert refused(Imds(environ)) == "AWS_EC2_METADATA_DISABLED = true"
    assert imds.requests == []


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


def test_proxies_are_not_used(client: Imds, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert client.get(TYPE) is not None
