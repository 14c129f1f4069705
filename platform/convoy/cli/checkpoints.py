"""`convoy checkpoints ...`: look at, check, copy and prune what a job has on one tier."""

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from convoy.checkpoint.commits import CommitGoneError
from convoy.checkpoint.format import DamagedCommitError
from convoy.checkpoint.listing import ListEntry, read_existing_history
from convoy.checkpoint.listing import list_commits as list_commits
from convoy.checkpoint.verify import marks
from convoy.checkpoint.verify.commit import verify_commit
from convoy.checkpoint.writer import prune as pruning
from convoy.checkpoint.writer.copy import CopyFailedError, copy_commit, copy_job_records
from convoy.cli.main import CommandFailed
from convoy.cli.options import ENDPOINT, JSON, configured_stores, newest_configuration, store_at
from convoy.config.checkpoint import RetentionConfig
from convoy.config.errors import ConfigError
from convoy.display.formatting import plural, size
from convoy.display.page import Column, Page, columns
from convoy.display.terminal import show
from convoy.job.heartbeat import check_not_live
from convoy.job.lineage import CommitRef, History, counted_commits, on_branch
from convoy.storage import Store, is_shared

URI = click.argument("uri")
STEP = click.option("--step", type=int, default=None, help="Only the checkpoint of this step that counts.")


@click.group()
def checkpoints() -> None:
    """Look at, check, copy and prune checkpoints.

    URI is where one job's state lives on one tier: ROOT/JOB, such as /fsx/runs/blue or s3://bucket/runs/blue.

    What is written to S3 is encrypted and of the storage class that the job was configured with; the configuration is
    kept on the job's first tier alone. A store that is not AWS is named by --endpoint-url or $AWS_ENDPOINT_URL.
    """


@checkpoints.command("list")
@URI
@ENDPOINT
@JSON
def list_(uri: str, endpoint_url: str | None, as_json: bool) -> None:
    """List the checkpoints at URI, and the state of each."""
    store = store_at(uri, endpoint_url)
    rows = list_commits(store)
    if as_json:
        _print_json({"uri": store.uri, "checkpoints": [row.model_dump() for row in rows]})
    elif rows:
        _print_table(rows)
    else:
        click.echo("no checkpoints yet")


@checkpoints.command()
@URI
@ENDPOINT
@STEP
@click.option("--reinstate", is_flag=True, help="Unmark checkpoints that were marked as damaged but verify now.")
@JSON
def verify(uri: str, endpoint_url: str | None, step: int | None, reinstate: bool, as_json: bool) -> None:
    """Read back every byte of the checkpoints at URI, and mark them as verified, or as damaged: then they count no
    more.

    Exit code 1 if one is damaged, or was found so before, by a host that may have read it wrongly: run this on another.
    """
    (store,) = configured_stores([uri], endpoint_url)
    evidence: dict[tuple[int, int], marks.Evidence] = {}

    def verify_one(ref: CommitRef) -> tuple[int, str]:
        earlier = marks.read_damage(store, ref)
        if earlier is None:
            count = verify_commit(store, ref, drop_cache=True)
            return count, f"{size(count)}, every byte is right"
        evidence[ref.generation, ref.step] = earlier
        before = f"found damaged before, by {earlier.host} on {_utc_text(earlier.at)} UTC: {earlier.error}"
        try:
            count = verify_commit(store, ref, drop_cache=True)
        except DamagedCommitError as error:
            raise DamagedCommitError(f"{before}; here too: {error}") from error
        if not reinstate:
            raise DamagedCommitError(f"{before}; here every byte is right: --reinstate has it count again")
        marks.reinstate(store, ref)
        return count, f"{size(count)}, every byte is right; it counts again, though {before}"

    results = _process_commits(_choose_commits(store, step, with_damaged=True), verify_one, as_json)
    for row in results:
        earlier = evidence.get((row["generation"], row["step"]))
        row |= {} if earlier is None else {"evidence": earlier.model_dump()}
    _print_or_fail(results, {"uri": store.uri}, as_json)


@checkpoints.command()
@URI
@ENDPOINT
@click.argument("to")
@STEP
@JSON
def copy(uri: str, endpoint_url: str | None, to: str, step: int | None, as_json: bool) -> None:
    """Copy the checkpoints at URI that count to the same job on another tier, TO, every byte checked.

    Existing checkpoints are not copied again. Refused, with exit code 2, where both have diverged since one was copied
    from the other. Exit code 1 if a checkpoint could not be copied.
    """
    source, target = configured_stores([uri, to], endpoint_url)
    check_not_live(target, target.uri)
    refs = _choose_commits(source, step)
    copy_job_records(source, target)

    def copy_one(ref: CommitRef) -> tuple[int, str]:
        _, count = copy_commit(source, target, ref)
        return count, f"{size(count)} copied" if count else "is there"

    results = _process_commits(refs, copy_one, as_json)
    _print_or_fail(results, {"uri": source.uri, "to": target.uri}, as_json)


@checkpoints.command()
@URI
@ENDPOINT
@click.option("--keep-last", type=click.IntRange(1), default=None, help="Newest verified checkpoints to keep.")
@click.option("--keep-every", type=click.IntRange(1), default=None, help="Also keep one per multiple of these steps.")
@click.option("--root", default=None, help="URI of the job on its first tier; needed where URI is another one.")
@click.option("--dry-run", is_flag=True, help="List what would be removed, and remove nothing.")
@JSON
def prune(
    uri: str,
    endpoint_url: str | None,
    keep_last: int | None,
    keep_every: int | None,
    root: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Remove what retention does not keep at URI; what stays is by default as the job was configured.

    What a script saved with `Checkpoints` has no configuration: give it the same --keep-last and --keep-every.

    Never removed: the newest checkpoints that were read back whole, and all newer ones.
    """
    first, store = configured_stores([uri if root is None else root, uri], endpoint_url)
    read_existing_history(store)
    history = read_existing_history(first)
    _check_first_tier(first, history)
    check_not_live(first, first.uri)
    policy = _retention_policy(first, history, keep_last, keep_every)
    work = pruning.would_prune if dry_run else pruning.prune
    pruned = work(store, history.newest, policy, root=first)
    if as_json:
        _print_json(pruned.model_dump() | {"dry_run": dry_run})
    else:
        for ref in pruned.commits:
            click.echo(f"step {ref.step} of generation {ref.generation}")
        counts = f"{plural(len(pruned.commits), 'checkpoint')}, {plural(pruned.attempts, 'unfinished save')}"
        click.echo(f"{counts}, {size(pruned.bytes)}: {'would be removed' if dry_run else 'removed'}")
    if pruned.error is not None:
        raise CommandFailed(pruned.error)


def _process_commits(
    refs: Sequence[CommitRef], process: Callable[[CommitRef], tuple[int, str]], as_json: bool
) -> list[dict[str, Any]]:
    """The result of each commit, newest first. process: returns bytes and words."""
    results: list[dict[str, Any]] = []
    for ref in reversed(refs):
        error: str | None = None
        try:
            count, words = process(ref)
        except CommitGoneError:
            continue  # pruned meanwhile
        except (DamagedCommitError, CopyFailedError) as failure:
            count, words, error = 0, str(failure), str(failure)
        results.append({"generation": ref.generation, "step": ref.step, "bytes": count, "error": error})
        if not as_json:
            click.echo(f"step {ref.step} of generation {ref.generation}: {words}")
    return results


def _print_or_fail(results: list[dict[str, Any]], uris: dict[str, Any], as_json: bool) -> None:
    if as_json:
        _print_json(uris | {"checkpoints": results})
    elif not results:
        click.echo("no checkpoints that count")
    bad = sum(result["error"] is not None for result in results)
    if bad:
        raise CommandFailed(f"{bad} of {plural(len(results), 'checkpoint')}: see above")


def _choose_commits(store: Store, step: int | None, with_damaged: bool = False) -> list[CommitRef]:
    """The commits that count, oldest first. Raises ConfigError if none of them has the requested step.

    with_damaged: also those that would count but for that.
    """
    history = read_existing_history(store)
    counted = counted_commits(history)
    if with_damaged:
        counted += [ref for ref in history.damaged & history.commits if on_branch(history, ref)]
        counted.sort(key=lambda ref: (ref.generation, ref.step))
    chosen = [ref for ref in counted if step is None or ref.step == step]
    if step is not None and not chosen:
        have = ", ".join(str(ref.step) for ref in counted) or "none"
        raise ConfigError(f"--step {step}: must be the step of a checkpoint that counts: {have}")
    return chosen


def _check_first_tier(store: Store, history: History) -> None:
    """Raises ConfigError if this tier is a further one of the job's newest generation."""
    newest = history.generations.get(history.newest)
    if newest is not None and _comparable_uri(store.uri) in map(_comparable_uri, newest.tiers):
        raise ConfigError(
            f"--root: required, and must be the job's first tier; {store.uri} is a further one, which does not "
            "record whether the job is running, nor every rewind"
        )


def _comparable_uri(uri: str) -> str:
    return uri.rstrip("/") if is_shared(uri) else str(Path(uri.removeprefix("file://")).resolve())


def _retention_policy(store: Store, history: History, keep_last: int | None, keep_every: int | None) -> RetentionConfig:
    """The retention of the newest generation, with the command's options over it."""
    checkpoint: dict[str, Any] | None = newest_configuration(store, history).get("checkpoint")
    if checkpoint is None and keep_last is None:
        raise ConfigError(f"--keep-last: required: nothing at {store.uri} says how many to keep")
    configured = (checkpoint or {}).get("retention", {})
    options = {"keep_last": keep_last, "keep_every_steps": keep_every}
    return RetentionConfig.model_validate(
        configured | {key: value for key, value in options.items() if value is not None}
    )


def _print_table(rows: Sequence[ListEntry]) -> None:
    table = columns(
        rows,
        Column("Step", lambda row: row.step, right=True),
        Column("Generation", lambda row: row.generation, right=True),
        Column("Size", lambda row: row.bytes, size, right=True),
        Column("Saved (UTC)", lambda row: row.created, _utc_text),
        Column("State", _state_text),
    )
    show(Page("Checkpoints", (table,)), Console())
    for row in rows:
        if row.damage or row.problem:
            click.echo(f"step {row.step} of generation {row.generation}: {row.damage or row.problem}")


def _state_text(row: ListEntry) -> str:
    if row.damage or row.problem:
        return "damaged" if row.damage else "not readable"
    if not row.counts:
        return "not on the lineage"
    if row.suspected_by:
        return f"suspected by {', '.join(row.suspected_by)}"
    read_back = f"{row.verified_parts} of {row.parts} parts verified" if row.verified_parts else "not verified"
    return ("verified" if row.verified else read_back) + (", in use" if row.in_use else "")


def _utc_text(created: float) -> str:
    return f"{datetime.fromtimestamp(created, UTC):%Y-%m-%d %H:%M:%S}"


def _print_json(content: dict[str, Any]) -> None:
    click.echo(json.dumps(content, indent=2))
