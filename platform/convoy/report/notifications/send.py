"""Sending a message by apprise, in a process of its own that can be killed. The targets are in `$CONVOY_NOTIFY` alone.

Run as `python -m convoy.report.notifications.send`; the message comes by standard input.
"""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from convoy.config.errors import PrerequisiteMissing, missing_extra
from convoy.config.notify import TARGET
from convoy.gang.async_call import say
from convoy.report.notifications.message import Message

SEND_SECONDS = 20.0
"""For a message, to all targets."""

_SOME = 3
"""Exit code: of several targets some took the message."""


def is_sent(message: Message, seconds: float = SEND_SECONDS) -> bool | None:
    """Send it to $CONVOY_NOTIFY. False: no target took it. None: it is not known whether one did in that time. Where
    some of several took it, it counts as sent: those would get it again.

    What apprise and its libraries print is dropped: it may hold the target's password.
    """
    command = [sys.executable, "-m", "convoy.report.notifications.send"]
    body = json.dumps({"title": message.title, "body": message.body}).encode()
    quiet = subprocess.DEVNULL
    try:
        done = subprocess.run(
            command, input=body, stdout=quiet, stderr=quiet, timeout=seconds, start_new_session=True, check=False
        )
    except subprocess.TimeoutExpired:
        return None
    if done.returncode == _SOME:
        say("convoy: notify: one of several targets did not take a message, and does not get it again", error=True)
    return done.returncode in (0, _SOME)


def check_target(environ: Mapping[str, str]) -> None:
    """Raises PrerequisiteMissing, without the target's text, if $CONVOY_NOTIFY is not set, apprise is not installed, or
    apprise does not know such a target."""
    urls = environ.get(TARGET, "").split()
    if not urls:
        raise PrerequisiteMissing(
            f"{TARGET}: not set, and notify.on needs a target: a URL of apprise, e.g. mailtos://USER:PASSWORD@HOST"
        )
    for number, url in enumerate(urls, 1):
        if not _apprise().add(url):
            raise PrerequisiteMissing(f"{TARGET}: apprise knows no target of the form of URL {number} of {len(urls)}")


def _apprise() -> Any:
    try:
        from apprise import Apprise
    except ImportError as error:
        raise PrerequisiteMissing(f"notify.on: {missing_extra(error.name or 'apprise', 'notify')}") from None
    logger = logging.getLogger("apprise")  # it shows parts of a URL that it cannot read
    logger.handlers, logger.propagate = [logging.NullHandler()], False
    return Apprise()


def main() -> int:
    """0: every target took the message."""
    message, urls = json.load(sys.stdin), os.environ[TARGET].split()

    def took(url: str) -> bool:
        target = _apprise()
        return bool(target.add(url) and target.notify(title=message["title"], body=message["body"]))

    with ThreadPoolExecutor(len(urls)) as pool:
        taken = list(pool.map(took, urls))
    return 0 if all(taken) else _SOME if any(taken) else 1


if __name__ == "__main__":
    sys.exit(main())
