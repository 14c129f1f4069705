"""What docs/, README.md and the source cite of each other exists: pages, anchors, files of the source."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from markdown.extensions.toc import slugify

from convoy.cli.main import main
from convoy.config.loader import read_run, resolve
from tests.flows.places import REPOSITORY
from tests.tools import tool

DOCS = REPOSITORY / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
ROOT_PAGES = [REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as mkdocs and GitHub name them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S), re.M)
    return {slugify(heading.replace("`", ""), "-") for heading in headings}


def names_a_heading(page: Path, anchor: str) -> bool:
    return not anchor or anchor in anchors(page)


def cited_in_source() -> Iterator[tuple[str, str]]:
    """Each `docs/….md#…` of a tracked file outside docs/, with that file."""
    folders = ["platform", "tests", "flows", "configs", "tools", "benchmarks", ".ci", "*.toml", "*.yml", "Makefile"]
    tracked = subprocess.run(["git", "ls-files", *folders], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    for name in tracked.stdout.splitlines():
        path = REPOSITORY / name
        if path.suffix in (".py", ".yaml", ".yml", ".toml", ".sh", "") and path.is_file():
            for cited in re.findall(r"(?<![\w/])docs/[\w/-]+\.md(?:#[\w-]+)?", path.read_text()):
                yield name, cited


def test_every_page_and_anchor_that_the_source_cites_exists() -> None:
    cited = sorted(set(cited_in_source()))
    assert len(cited) > 20
    missing = []
    for name, target in cited:
        page, _, anchor = target.partition("#")
        if not (REPOSITORY / page).is_file() or not names_a_heading(REPOSITORY / page, anchor):
            missing.append(f"{name}: {target}")
    assert missing == []


@pytest.mark.parametrize("page", [*ROOT_PAGES, *PAGES], ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_link_of_a_page_leads_to_a_file_and_a_heading(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if not re.match(r"https?://|mailto:", target):
            name, _, anchor = target.partition("#")
            other = (page.parent / name) if name else page
            if not other.is_file() or (other.suffix == ".md" and not names_a_heading(other, anchor)):
                broken.append(target)
    assert broken == []


def is_a_file_of_the_source(name: str) -> bool:
    places = (REPOSITORY, REPOSITORY / "platform", REPOSITORY / "platform" / "convoy")
    return any((place / name).exists() for place in places)


def is_a_file_of_a_job(name: str) -> bool:
    return name.startswith(("shards/", "commits/", "generations/")) or "NAME" in name


@pytest.mark.parametrize("page", [*ROOT_PAGES[:2], *PAGES], ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_every_source_file_that_a_page_names_exists(page: Path) -> None:
    """`gang/agent.py` is a path from the repository, from platform/ or from platform/convoy/."""
    named = re.findall(r"`((?:[a-z_.]+/)+[\w.-]+\.(?:py|json|csv|yaml|toml))`", page.read_text())
    assert [name for name in named if not is_a_file_of_the_source(name) and not is_a_file_of_a_job(name)] == []


def test_the_map_has_every_room() -> None:
    section = (DOCS / "explanation" / "architecture.md").read_text().partition("The rooms of `platform/convoy/`")[2]
    rows = re.findall(r"^\| `(\w+/|\w+\.py)` \|", section.partition("\n## ")[0], re.M)
    source = REPOSITORY / "platform" / "convoy"
    folders = {f"{path.name}/" for path in source.iterdir() if path.is_dir() and list(path.rglob("*.py"))}
    modules = {path.name for path in source.glob("*.py") if not path.name.startswith("__")}
    assert sorted(rows) == sorted(folders | modules)


def test_the_architecture_says_where_what_is_decided() -> None:
    """Each row of the table names a file, which the test above holds to exist, and often what in it decides."""
    section = (DOCS / "explanation" / "architecture.md").read_text().partition("## Where what is decided")[2]
    rows = re.findall(r"^\| (.+\?) \| (.+) \|$", section.partition("\n## ")[0], re.M)
    assert len(rows) >= 30
    assert [question for question, answer in rows if not re.match(r"`[\w/]+\.py`", answer)] == []
    named = [
        (file, name)
        for _, answer in rows
        for file, names in re.findall(r"`([\w/]+\.py)` \(([^)]*)\)", answer)
        for name in re.findall(r"`(\w+)`", names)
    ]
    assert len(named) > 30
    source = REPOSITORY / "platform" / "convoy"
    assert [
        each for each in named if not re.search(rf"^(def|class) {each[1]}\b", (source / each[0]).read_text(), re.M)
    ] == []


COMMANDS = re.findall(
    r"^\| (`convoy .*)$", (DOCS / "reference" / "commands.md").read_text().partition("## Flows")[0], re.M
)


def help_of(words: list[str]) -> str:
    """The help of the command that the words begin with."""
    group: click.Command = main
    for word in words:
        command = group.get_command(click.Context(group), word) if isinstance(group, click.Group) else None
        if command is None:
            break
        group = command
    return group.get_help(click.Context(group))


@pytest.mark.parametrize("row", COMMANDS)
def test_every_option_of_a_documented_command_exists(row: str) -> None:
    named = [text.split() for text in re.findall(r"`convoy ([^`]+)`", row)]
    helps = " ".join(help_of(words) for words in named)
    assert [option for option in re.findall(r"--[a-z-]+", row) if option not in helps] == []


def test_every_command_is_documented() -> None:
    documented = {text.split()[0] for row in COMMANDS for text in re.findall(r"`convoy ([^`]+)`", row)}
    assert documented == set(main.list_commands(click.Context(main)))


GLOSSARY = DOCS / "reference" / "glossary.md"
RETIRED = r"\b(told|tells?|beside|go(es|ing)? on|went on|taken away|laid on|of use|standing still|mend(ed|s)?)\b"


def prose(page: Path) -> str:
    """The text of a page without code, and without what commands print."""
    text = re.sub(r"^```.*?^```|<!-- cpu: .*?<!-- end of cpu", "", page.read_text(), flags=re.M | re.S)
    return re.sub(r"`[^`]*`", "", text)


@pytest.mark.parametrize(
    "page",
    [page for page in (*ROOT_PAGES, *PAGES) if page != GLOSSARY],
    ids=lambda page: str(page.relative_to(REPOSITORY)),
)
def test_no_page_uses_a_retired_word(page: Path) -> None:
    """The glossary has the words that replaced them."""
    assert [match[0] for match in re.finditer(RETIRED, prose(page))] == []


def test_the_glossary_has_every_word_that_the_tool_counts() -> None:
    table = GLOSSARY.read_text().partition("## Retired words")[2]
    assert [word for word in tool("retired_words").RETIRED if not re.search(rf"^\|.*\b{word}\b.*\|", table, re.M)] == []


def test_the_readme_stays_short() -> None:
    assert len((REPOSITORY / "README.md").read_text().splitlines()) <= 220


def test_the_readmes_configuration_is_valid() -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", (REPOSITORY / "README.md").read_text(), re.DOTALL)
    assert resolve(read_run(example), {}).train.steps == 2000
