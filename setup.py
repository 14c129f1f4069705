"""Puts the presets and the flows, whose only copy lies next to the package, into a wheel.

pyproject.toml cannot express that. An editable install reads the repository's copy (`config.loader.shipped_folder`).
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SHIPPED = {"configs": ("*.yaml",), "flows": ("*.py", "*.json")}


class BuildWithShipped(build_py):
    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib, "convoy", "shipped")
        shutil.rmtree(target, ignore_errors=True)
        for folder, patterns in SHIPPED.items():
            for file in sorted(file for pattern in patterns for file in Path(folder).rglob(pattern)):
                (target / file.parent).mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target / file)


setup(cmdclass={"build_py": BuildWithShipped})
