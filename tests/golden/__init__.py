"""What Convoy printed and wrote at one commit, recorded, so that moved code can be held to it.

`records.py` makes each record from the product; `test_golden.py` compares them with the files below `recorded/`.
`python -m tests.golden` reports how many are equal, and `--write` records anew. A change that moves code changes no
record. A change of words changes texts only: `python -m tests.golden --against REV` names each record in which more
than texts differs from that revision's. Records are never written anew in the commit that changes what they check.
"""
