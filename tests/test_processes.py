"""`make check` leaves out what starts a process, and notices what it should have left out."""

import sys

import pytest


def test_a_process_that_was_not_foreseen_fails_its_test() -> None:
    popen = vars(sys.modules["subprocess"])["Popen"]  # not by its name, so that this test is not marked
    with pytest.raises(pytest.fail.Exception, match=r"starts a process \(subprocess.Popen\): mark it"):
        popen(["true"])
