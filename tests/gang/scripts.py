"""Scripts as users would bring them, and gangs that run them."""

from pathlib import Path
from typing import Any

from convoy.config.run import RunConfig
from convoy.gang.task import Script, Task

DDP = Path(__file__).resolve().parents[1] / "flows" / "ddp_script.py"


def a_script(folder: Path, text: str, *args: object, **options: Any) -> Task:
    """What a gang is to do to run this text. options: as of `running`."""
    file = folder / "a_script.py"
    file.write_text(text)
    return running(folder, str(file), *args, **options)


def running(
    folder: Path,
    entrypoint: str,
    *args: object,
    hang_seconds: float = 600.0,
    exit_seconds: float = 35.0,
    **sections: Any,
) -> Task:
    config = RunConfig.model_validate({"train": {"threads_per_rank": 1}, **sections})
    words = tuple(map(str, args))
    script = Script(entrypoint=entrypoint, args=words, hang_seconds=hang_seconds, exit_seconds=exit_seconds)
    return Task(config, "job", str(folder / "root"), "", "script", None, script=script)


def printed(task: Task, rank: int, generation: int = 1) -> str:
    """By a rank on a node of its own."""
    return Path(task.root, "job", "logs", f"{generation:06d}", f"{rank:05d}", f"rank{rank:05d}.log").read_text()
