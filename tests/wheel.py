"""The wheel in a clean environment, with the lowest versions that pyproject.toml allows: the README runs there.

Not collected with the other tests (its name has no test_): `make test-wheel` runs it, which takes about a minute.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# The other extras are for a clone.
FOR_USERS = (
    "spark",
    "topology",
    "postgres",
    "redis",
    "rabbitmq",
    "kafka",
    "prometheus",
    "opentelemetry",
    "draw",
    "cli",
)
README = f"""
import doctest, re, sys
sys.path.append({str(ROOT / "examples")!r})
blocks = re.findall(r"^```python\\n(.*?)^```$", open({str(ROOT / "README.md")!r}).read(), re.M | re.S)
"""
PROMPTS = (
    README
    + """
prompts = [block for block in blocks if ">>>" in block]
scope = {"__name__": "__main__"}
test = doctest.DocTestParser().get_doctest("\\n".join(prompts), scope, "README.md", None, 0)
result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE).run(test, clear_globs=False)
assert result.failed == 0 and result.attempted > 5, result
"""
)
ON_SPARK = (
    PROMPTS
    + """
(example,) = [block for block in blocks if ">>>" not in block and "windowing.spark" in block]
exec(compile(example, "README.md", "exec"), test.globs)
for name, sink in test.globs["sinks"].items():
    assert [tuple(row) for row in sink.rows] == test.globs["result"][name], (name, sink.rows)
"""
)
OTHER_EXTRAS = (
    PROMPTS
    + """
import windowing.stores.postgres, windowing.stores.redis, windowing.queues.kafka_spouts
import windowing.queues.rabbit, windowing.queues.redis_stream
from windowing.monitoring import PrometheusCollector, export_to_opentelemetry
from windowing.stores.factory import store_of
assert repr(store_of("postgresql://me:key@127.0.0.1/db")) and repr(store_of("redis://127.0.0.1:1/0"))
from windowing.local.drawing import to_png, to_svg
from word_count import topology
assert "<svg" in to_svg(topology()) and to_png(topology())
"""
)


def lowest(requirements: Sequence[str]) -> Iterator[str]:
    """Yield `name[extras]==version` of the lowest version that each requirement allows; the project's own extras have none."""
    for requirement in map(Requirement, requirements):
        if requirement.name == PROJECT["name"]:
            continue
        bounds = [bound.version for bound in requirement.specifier if bound.operator in (">=", "==")]
        assert bounds, f"{requirement} has no lower bound"
        extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
        yield f"{requirement.name}{extras}=={bounds[0]}"


def lowest_of(names: Iterable[str]) -> list[str]:
    """Return the lowest versions of the requirements of the wheel and these extras."""
    extras = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *(each for name in names for each in extras[name])]
    return sorted(set(lowest(wanted)))


def ran(*command: object, cwd: Path | None = None) -> str:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK", "SPARK"))
    }
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an empty environment, without pip."""
    ran(sys.executable, "-m", "venv", "--without-pip", tmp_path_factory.mktemp("clean") / "env")
    return next(tmp_path_factory.getbasetemp().glob("clean*/env/bin/python"))


@pytest.fixture(scope="module")
def install(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], None]:
    """Install the wheel with these extras, and the lowest versions of its requirements."""
    folder = tmp_path_factory.mktemp("wheel")
    ran(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT)
    (wheel,) = folder.glob("*.whl")
    constraints = folder / "lowest.txt"
    constraints.write_text(re.sub(r"\[.*?\]", "", "\n".join(lowest_of(FOR_USERS))))  # a constraint has no extras

    def add(names: str) -> None:
        pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile")
        ran(*pip, "--constraint", constraints, f"{wheel}{names}")

    return add


def test_the_wheel_without_extras_runs_the_windows_of_the_readme(
    python: Path, install: Callable[[str], None], tmp_path: Path
) -> None:
    install("")
    ran(python, "-c", PROMPTS, cwd=tmp_path)


def test_the_wheel_with_the_extra_topology_runs_a_topology(
    python: Path, install: Callable[[str], None], tmp_path: Path
) -> None:
    install("[topology]")
    assert "38 words" in ran(python, ROOT / "examples" / "word_count.py", cwd=tmp_path)


def test_the_wheel_with_only_the_extra_spark_runs_the_bolt_of_the_readme_on_spark(
    python: Path, install: Callable[[str], None], tmp_path: Path
) -> None:
    ran(sys.executable, "-m", "pip", "--python", python, "uninstall", "--quiet", "--yes", "xxhash")
    install("[spark]")
    ran(python, "-c", ON_SPARK, cwd=tmp_path)


@pytest.mark.parametrize(
    ("page", "here", "there", "pyspark"),
    [
        ("start.md", "words.py", "words_on_spark.py", None),
        # The first version with sources in Python.
        ("guides/from_storm.md", "word_count.py", "word_count_on_spark.py", "4.2.0"),
    ],
)
def test_with_the_extra_spark_the_files_of_a_page_print_the_same_in_one_process_and_on_spark(
    python: Path, install: Callable[[str], None], tmp_path: Path, page: str, here: str, there: str, pyspark: str | None
) -> None:
    install("[spark]")
    if pyspark is not None:
        ran(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", f"pyspark=={pyspark}")
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    for name, code in re.findall(r"^```python title=\"([\w.]+)\"\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        tmp_path.joinpath(name).write_text(code)
    lines = ran(python, there, cwd=tmp_path).splitlines()
    expected = ran(python, here, cwd=tmp_path).splitlines()
    assert [line for line in expected if line in lines] == [line for line in expected if not line.startswith("acked")]


def test_every_other_extra_works_with_its_lowest_versions(
    python: Path, install: Callable[[str], None], tmp_path: Path
) -> None:
    install("[postgres,redis,rabbitmq,kafka,prometheus,opentelemetry,draw,cli]")
    ran(python, "-c", OTHER_EXTRAS, cwd=tmp_path)
    assert re.search("usage", ran(python, "-m", "windowing", "--help", cwd=tmp_path), re.IGNORECASE)
