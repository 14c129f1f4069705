"""`convoy net counters`: traffic of a host's interfaces and RDMA adapters while a command runs."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Sequence

import click

from convoy.cli.options import JSON, print_result
from convoy.config.errors import ConfigError
from convoy.network.counters import read_counters, traffic_between
from convoy.network.pages.counters import traffic_page

FORWARDED = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}


@click.command()
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@JSON
def counters(command: tuple[str, ...], as_json: bool) -> None:
    """Run COMMAND, which follows `--`, and report what this host's network carried meanwhile.

    Bytes of each interface and each port of an RDMA adapter, the imbalance between them, TCP's retransmissions, and
    drops, of all processes in this network namespace. The exit code is the command's, or 128 plus the number of
    the signal that ended it. With --json, what the command prints goes to stderr.
    """
    if not command:
        raise ConfigError("COMMAND: required, after --; for example: convoy net counters -- torchrun train.py")
    before, began = read_counters(), time.monotonic()
    exit_code = _run(command, output=2 if as_json else 1)
    traffic = traffic_between(before, read_counters(), time.monotonic() - began)
    print_result(traffic, traffic_page(traffic), as_json)
    sys.exit(exit_code)


def _run(command: Sequence[str], output: int) -> int:
    """Run a command to its end, and pass it the signals that this process gets. output: the file descriptor that
    becomes its stdout. Raises ConfigError if it cannot be started."""
    ours = {*FORWARDED, signal.SIGCHLD}
    former = signal.pthread_sigmask(signal.SIG_BLOCK, ours)
    sys.stdout.flush()
    try:
        try:
            child = os.posix_spawnp(
                command[0], list(command), os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, output, 1)],
                setsigmask=former, setsigdef={signal.SIGPIPE, signal.SIGXFSZ},
            )  # fmt: skip
        except OSError as error:
            raise ConfigError(f"{command[0]}: cannot be started: {error.strerror}") from None
        while True:
            came = signal.sigwaitinfo(ours)
            if came.si_signo == signal.SIGCHLD:
                ended, status = os.waitpid(child, os.WNOHANG)
                if ended:
                    code = os.waitstatus_to_exitcode(status)
                    return code if code >= 0 else 128 - code
            elif came.si_code <= 0:  # from a process; a terminal's the command has got itself
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, came.si_signo)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)
