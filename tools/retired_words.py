"""Count the identifiers of a tree that contain a retired word: python tools/retired_words.py [--list] [REV]

An identifier is the name of a variable, argument, keyword, attribute, function, class or import, once per occurrence in
`platform/`. Names of the standard library and of other packages that say "not found" do not count. The words that took
their place are in docs/reference/glossary.md.
"""

import argparse
import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

RETIRED = frozenset(["told", "found", "beside", "given", "asked", "said", "seen", "shown", "kept", "known", "stands"])

OTHERS = re.compile(r"not_?found", re.IGNORECASE)
"""FileNotFoundError, ModuleNotFoundError, MetaflowNotFound, not_found."""

_WORD_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|_")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("revision", nargs="?", default="HEAD", help="commit whose tree is counted")
    parser.add_argument("--list", action="store_true", help="print each identifier with its count and one of its files")
    arguments = parser.parse_args()
    uses = Counter[str]()
    places: dict[str, str] = {}
    for path, text in _sources(arguments.revision):
        for name in _identifiers(ast.parse(text)):
            if is_retired(name):
                uses[name] += 1
                places.setdefault(name, path)
    if arguments.list:
        for name, count in uses.most_common():
            print(f"{count:6} {name}  {places[name]}")
    print(f"{uses.total()} uses of {len(uses)} identifiers with a retired word at {arguments.revision}")
    return 0


def is_retired(name: str) -> bool:
    """Whether one of the words that make up an identifier is retired."""
    return not OTHERS.search(name) and any(word.lower() in RETIRED for word in _WORD_BOUNDARY.split(name))


def _sources(revision: str) -> Iterator[tuple[str, str]]:
    for path in _git("ls-tree", "-r", "--name-only", revision, "platform").splitlines():
        if path.endswith(".py"):
            yield path, _git("show", f"{revision}:{path}")


def _identifiers(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.keyword(arg=str(name)):
                yield name
            case ast.alias():
                yield (node.asname or node.name).rpartition(".")[2]


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
