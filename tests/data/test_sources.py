"""Finding a corpus's files, and which of them are held out."""

import glob
import os
import sysconfig
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convoy.config.data import DatasetCorpus, FilesCorpus, ShardsCorpus, StdlibCorpus
from convoy.config.errors import ConfigError
from convoy.data.sources import content_digests, held_out_names, iterate_files, list_files
from tests.campaign import examples

pytestmark = pytest.mark.campaign


def _tree(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"text of {name}\n")
    return folder


def _names(path: Path | str, **more: object) -> list[str]:
    return [file.name for file in list_files(FilesCorpus.model_validate({"kind": "files", "path": str(path), **more}))]


def test_the_standard_library_is_found_without_installed_packages() -> None:
    files = list_files(StdlibCorpus())
    names = {file.name for file in files}
    assert len(files) > 500  # Debian's has no tests
    assert {"json/decoder.py", "os.py"} <= names
    assert all(name.endswith(".py") for name in names)
    assert not any("site-packages" in name or "dist-packages" in name for name in names)
    assert sum(file.size for file in files) > 10_000_000
    assert all(Path(file.location).is_relative_to(sysconfig.get_path("stdlib")) for file in files)


def test_a_folder_is_searched_recursively_in_name_order(tmp_path: Path) -> None:
    _tree(tmp_path, "z.txt", "a/b/c.md", "a/a.py", "skip.json", "a/skip.txt.gz")
    assert _names(tmp_path) == ["a/a.py", "a/b/c.md", "z.txt"]


def test_suffixes_choose_the_files_of_a_folder(tmp_path: Path) -> None:
    _tree(tmp_path, "a.txt", "b.rst", "c.jsonl")
    assert _names(tmp_path, suffixes=[".rst"]) == ["b.rst"]
    assert _names(tmp_path, format="jsonl") == ["c.jsonl"]


def test_a_glob_takes_what_it_matches_whatever_the_suffix(tmp_path: Path) -> None:
    _tree(tmp_path, "x/a.log", "x/y/b.log", "c.log")
    assert _names(tmp_path / "x" / "*.log") == ["a.log"]
    assert _names(tmp_path / "**" / "*.log") == ["c.log", "x/a.log", "x/y/b.log"]


def test_two_stars_enter_no_symbolic_link_and_find_each_file_once(tmp_path: Path) -> None:
    _tree(tmp_path, "x/a.txt", "x/y/b.txt", "x/.hidden/c.txt", ".d.txt")
    (tmp_path / "x" / "y" / "up").symlink_to(tmp_path)
    (tmp_path / "x" / "again").symlink_to(tmp_path / "x" / "y")
    assert _names(tmp_path / "**" / "*.txt") == ["x/a.txt", "x/y/b.txt"]
    assert _names(tmp_path / "**" / "x" / "**" / "*.txt") == ["x/a.txt", "x/y/b.txt"]
    assert _names(tmp_path / "x" / "**") == ["a.txt", "y/b.txt"]
    assert _names(tmp_path / "*" / "again" / "*.txt") == ["x/again/b.txt"]


@given(st.lists(st.sampled_from(["**", "*", "a*", "a", "[ab].txt", "*.txt", ".h", "../*"]), min_size=1, max_size=4))
@examples(60)
def test_without_links_a_glob_finds_what_pythons_finds(tree_of_files: Path, parts: list[str]) -> None:
    pattern = "/".join([str(tree_of_files), "*", *parts])
    theirs = {name for name in glob.iglob(pattern, recursive=True) if os.path.isfile(name)}  # noqa: PTH113, PTH207
    corpus = FilesCorpus(kind="files", path=pattern)
    assert {file.location for file in iterate_files(corpus)} == {os.path.abspath(name) for name in theirs}  # noqa: PTH100


@pytest.fixture(scope="module")
def tree_of_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _tree(tmp_path_factory.mktemp("tree"), "a/a/a.txt", "a/b.txt", "b/.h/a.txt", "b/a", "c.txt", "b/ab/.h/b.txt")


def test_names_do_not_depend_on_where_the_corpus_lies(tmp_path: Path) -> None:
    one, other = _tree(tmp_path / "one", "a/b.txt"), _tree(tmp_path / "other" / "deep", "a/b.txt")
    assert _names(one) == _names(other)
    assert _names(one / "a" / "b.txt") == ["b.txt"]
    assert _names(one / "*" / "*.txt") == _names(other / "*" / "*.txt")


def test_the_home_folder_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(_tree(tmp_path, "corpus/a.txt")))
    assert _names("~/corpus") == ["a.txt"]


def test_a_changed_file_has_another_stamp(tmp_path: Path) -> None:
    corpus = FilesCorpus(kind="files", path=str(_tree(tmp_path, "a.txt")))
    before = list_files(corpus)[0]
    times = (tmp_path / "a.txt").stat()
    (tmp_path / "a.txt").write_text("text of b.txt\n")  # as long as before
    os.utime(tmp_path / "a.txt", ns=(times.st_atime_ns, times.st_mtime_ns))
    after = list_files(corpus)[0]
    assert before.size == after.size
    assert before.stamp != after.stamp


def test_content_digests_depend_on_the_content_alone(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("same")
    (tmp_path / "b.txt").write_text("same")
    (tmp_path / "c.txt").write_text("other")
    one, two, three = content_digests(list_files(FilesCorpus(kind="files", path=str(tmp_path))), remote=False)
    assert one == two != three


def _refused(corpus: FilesCorpus | ShardsCorpus | DatasetCorpus) -> str:
    with pytest.raises(ConfigError) as refusal:
        list_files(corpus)
    return str(refusal.value)


def _text(path: str) -> FilesCorpus:
    return FilesCorpus(kind="files", path=path)


@pytest.mark.parametrize(
    ("corpus", "line"),
    [
        (_text("other"), "data.corpus.path = {here}/other: no files match (data.corpus.suffixes: .txt .md .py)"),
        (_text("*.txt"), "data.corpus.path = {here}/*.txt: no files match"),
        (_text("none"), "data.corpus.path = {here}/none: does not exist"),
        (_text("broken"), "data.corpus: cannot read {here}/broken/gone.txt: No such file or directory"),
        (_text("pipes"), "data.corpus: cannot read {here}/pipes/pipe.txt: not a regular file"),
        (DatasetCorpus(kind="hf", path="other/a.json"), "data.corpus.path = {here}/other/a.json: not a folder"),
    ],
)
def test_a_corpus_that_cannot_be_read_is_named(corpus: FilesCorpus | DatasetCorpus, line: str, tmp_path: Path) -> None:
    _tree(tmp_path, "other/a.json")
    for name in ("broken", "pipes"):
        (tmp_path / name).mkdir()
    (tmp_path / "broken" / "gone.txt").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipes" / "pipe.txt")
    here = corpus.model_copy(update={"path": f"{tmp_path}/{corpus.path}"})
    assert _refused(here) == line.format(here=tmp_path)


def test_ready_made_shards_must_be_local() -> None:
    assert "must be a local path" in _refused(ShardsCorpus(kind="shards", path="s3://bucket/x", vocab_size=9))


NAMES = st.lists(st.text(min_size=1, max_size=12), min_size=2, max_size=60, unique=True)
FRACTIONS = st.floats(0.001, 0.999)


@given(NAMES, FRACTIONS)
@settings(deadline=None)
def test_each_side_gets_at_least_one_name(names: list[str], fraction: float) -> None:
    chosen = held_out_names(names, fraction)
    assert 1 <= len(chosen) < len(names)
    assert chosen <= set(names)


@given(NAMES, FRACTIONS, st.randoms())
@settings(deadline=None)
def test_the_order_of_names_does_not_matter(names: list[str], fraction: float, random: object) -> None:
    assert held_out_names(names, fraction) == held_out_names(sorted(names, reverse=True), fraction)


def test_about_the_fraction_is_held_out() -> None:
    names = [f"package/module_{i}.py" for i in range(10_000)]
    assert 440 <= len(held_out_names(names, 0.05)) <= 560
    assert 8900 <= len(held_out_names(names, 0.9)) <= 9100


def test_a_growing_corpus_moves_no_file_to_the_other_side() -> None:
    names = [f"{i}.txt" for i in range(2000)]
    before = held_out_names(names[:1000], 0.1)
    assert held_out_names(names, 0.1) & set(names[:1000]) == before


@pytest.mark.parametrize("names", [[], ["only.txt"]])
def test_fewer_than_two_names_cannot_be_split(names: list[str]) -> None:
    with pytest.raises(ConfigError, match=rf"^data.validation_fraction = 0.5: .*only {len(names)} document"):
        held_out_names(names, 0.5)
