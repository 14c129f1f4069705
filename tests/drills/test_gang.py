"""Finding processes of a gang from outside."""

import subprocess
import time

from convoy.drills.gang import newest_of_name
from convoy.gang.workers.processes import name_of
from tests.gang.tasks import descendants, wait_for


def test_of_one_name_the_newest_is_found_and_none_that_another_has_forked() -> None:
    """Whatever their numbers are, which begin anew when they have come to the highest."""
    command = ["bash", "-c", "bash -c 'sleep 600; true'; true"]
    trees = []
    try:
        for _ in range(2):
            trees.append(subprocess.Popen(command))
            time.sleep(0.05)  # starts are told in hundredths of a second
        below = {pid for tree in trees for pid in wait_for("the inner ones", lambda t=tree: _tree(t.pid))}
        assert newest_of_name(below, "bash") == trees[1].pid
        assert newest_of_name(below - {trees[1].pid, *descendants(trees[1].pid)}, "bash") == trees[0].pid
        assert newest_of_name(below, "nobody") is None
    finally:
        for pid in [pid for tree in trees for pid in (*descendants(tree.pid), tree.pid)]:
            subprocess.run(["kill", "-9", str(pid)], check=False)
        for tree in trees:
            tree.wait()


def _tree(pid: int) -> set[int] | None:
    """A process and the two below it, once they are there."""
    below = descendants(pid)
    sleeps = any(name_of(each) == "sleep" for each in below)
    return {pid, *below} if sleeps and len(below) == 2 else None
