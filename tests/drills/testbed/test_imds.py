"""The stand-in for the metadata service keeps to the protocol: by the letter, and as boto's own client sees it."""

import calendar
import http.client
import json
import time
from urllib.parse import urlsplit

import pytest
from botocore.utils import IMDSFetcher, InstanceMetadataFetcher, InstanceMetadataRegionFetcher

from convoy.drills.testbed.imds import REBALANCE, SPOT_ACTION, TERMINATION_TIME, TOKEN, ImdsStandIn, Reply, Request
from convoy.gang.notices.imds import Imds

LONGEST = "21600"


def ask(imds: ImdsStandIn, method: str, path: str, **headers: str) -> tuple[int, str, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection(urlsplit(imds.url).netloc, timeout=5)
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, text, response.headers


def token(imds: ImdsStandIn, ttl: str = LONGEST) -> str:
    status, text, _ = ask(imds, "PUT", "/latest/api/token", X_aws_ec2_metadata_token_ttl_seconds=ttl)
    assert status == 200
    return text


def get(imds: ImdsStandIn, path: str) -> tuple[int, str]:
    status, text, _ = ask(imds, "GET", f"/latest/{path}", X_aws_ec2_metadata_token=token(imds))
    return status, text


@pytest.mark.parametrize("ttl", ["0", "21601", "", "²"])
def test_a_token_s_time_must_be_1_to_21600_seconds(imds: ImdsStandIn, ttl: str) -> None:
    headers = {"X_aws_ec2_metadata_token_ttl_seconds": ttl} if ttl else {}
    assert ask(imds, "PUT", "/latest/api/token", **headers)[0] == 400


def test_a_token_comes_with_its_time_and_differs_from_the_one_before(imds: ImdsStandIn) -> None:
    status, text, headers = ask(imds, "PUT", "/latest/api/token", X_aws_ec2_metadata_token_ttl_seconds="60")
    assert (status, headers["X-aws-ec2-metadata-token-ttl-seconds"]) == (200, "60")
    assert len(text) > 40
    assert text != token(imds)


def test_a_question_for_a_token_that_came_through_a_proxy_is_refused(imds: ImdsStandIn) -> None:
    status, _, _ = ask(
        imds, "PUT", "/latest/api/token", X_aws_ec2_metadata_token_ttl_seconds="60", X_Forwarded_For="10.0.0.1"
    )
    assert status == 403


def test_without_a_good_token_everything_is_refused(imds: ImdsStandIn) -> None:
    for path in ("/latest/meta-data/instance-id", "/latest/meta-data/nothing"):
        assert ask(imds, "GET", path)[0] == 401
        assert ask(imds, "GET", path, X_aws_ec2_metadata_token="guessed")[0] == 401


def test_a_token_ends_when_its_time_is_over(imds: ImdsStandIn) -> None:
    short = token(imds, "1")
    until = time.monotonic() + 1
    assert ask(imds, "GET", "/latest/meta-data/instance-id", X_aws_ec2_metadata_token=short)[0] == 200
    time.sleep(max(0.0, until - time.monotonic()) + 0.05)
    assert ask(imds, "GET", "/latest/meta-data/instance-id", X_aws_ec2_metadata_token=short)[0] == 401


def test_other_methods_are_refused(imds: ImdsStandIn) -> None:
    given = token(imds)
    for method, path in (("POST", "meta-data/instance-id"), ("DELETE", TOKEN), ("GET", TOKEN), ("PUT", SPOT_ACTION)):
        assert ask(imds, method, f"/latest/{path}", X_aws_ec2_metadata_token=given)[0] == 405


def test_notices_have_the_form_that_ec2_has_and_an_interruption_comes_two_minutes_ahead(imds: ImdsStandIn) -> None:
    assert get(imds, SPOT_ACTION)[0] == get(imds, TERMINATION_TIME)[0] == 404
    imds.announce_interruption()
    told = json.loads(get(imds, SPOT_ACTION)[1])
    at = calendar.timegm(time.strptime(told["time"], "%Y-%m-%dT%H:%M:%SZ"))
    assert set(told) == {"action", "time"}
    assert told["action"] == "terminate"
    assert get(imds, TERMINATION_TIME) == (200, told["time"])
    assert at - time.time() == pytest.approx(120, abs=5)
    imds.recommend_rebalance()
    assert set(json.loads(get(imds, REBALANCE)[1])) == {"noticeTime"}
    imds.withdraw_notices()
    assert get(imds, REBALANCE)[0] == get(imds, TERMINATION_TIME)[0] == 404
    imds.announce_interruption("stop")  # which has no termination time
    assert json.loads(get(imds, SPOT_ACTION)[1])["action"] == "stop"
    assert get(imds, TERMINATION_TIME)[0] == 404


def test_a_path_answers_what_it_was_last_set_to(imds: ImdsStandIn) -> None:
    imds.set_reply(SPOT_ACTION, Reply(status=500))
    assert get(imds, SPOT_ACTION)[0] == 500
    imds.set_reply(SPOT_ACTION, Reply("late", delay_seconds=0.2))
    began = time.monotonic()
    assert get(imds, SPOT_ACTION) == (200, "late")
    assert time.monotonic() - began >= 0.2


def test_boto_s_fetcher_gets_what_ours_gets(imds: ImdsStandIn) -> None:
    imds.announce_interruption()
    ours = Imds({"AWS_EC2_METADATA_SERVICE_ENDPOINT": imds.url})
    boto = IMDSFetcher(config={"ec2_metadata_service_endpoint": imds.url}, env={})
    for path in ("meta-data/instance-id", SPOT_ACTION, TERMINATION_TIME):
        answer = ours.get(path)
        told = boto._get_request(f"latest/{path}", None, token=boto._fetch_metadata_token())
        assert answer is not None
        assert (told.status_code, told.text) == (200, answer.text)
    with pytest.raises(boto._RETRIES_EXCEEDED_ERROR_CLS):
        boto._get_request("latest/meta-data/nothing", None, token=boto._fetch_metadata_token())
    assert ours.get("meta-data/nothing") is None
    # Ours asks for a token once, boto each time.
    assert imds.requests[0] == imds.requests[2] == Request("PUT", TOKEN, 200)


def test_boto_finds_the_region_and_a_role_s_credentials(imds: ImdsStandIn) -> None:
    role = {
        "AccessKeyId": "key",
        "SecretAccessKey": "secret",
        "Token": "session",
        "Expiration": "2036-01-01T00:00:00Z",
    }
    imds.set_reply("meta-data/iam/security-credentials", Reply("trainer"))
    imds.set_reply("meta-data/iam/security-credentials/trainer", Reply(json.dumps(role)))
    config = {"ec2_metadata_service_endpoint": imds.url}
    assert InstanceMetadataRegionFetcher(config=config, env={}).retrieve_region() == "us-east-1"
    found = InstanceMetadataFetcher(config=config, env={}).retrieve_iam_role_credentials()
    assert (found["role_name"], found["access_key"]) == ("trainer", "key")
