"""The container image and the Kubernetes manifests of docs/containers."""

from __future__ import annotations

import importlib.metadata
import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest
from test_docs import ROOT, parsed

FOLDER = ROOT / "docs" / "containers"
MANIFESTS = (FOLDER / "kubernetes.yaml", FOLDER / "observer.yaml")


def read_stages(containerfile: Path) -> list[list[tuple[str, str]]]:
    """Return the instructions of each stage with their arguments."""
    text = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", containerfile.read_text(), flags=re.MULTILINE))
    instructions = [(line.split()[0], line.split(maxsplit=1)[1]) for line in text.splitlines() if line]
    starts = [number for number, (name, _) in enumerate(instructions) if name == "FROM"]
    return [instructions[start:end] for start, end in zip(starts, [*starts[1:], None], strict=True)]


def read_commands(manifest: Path) -> list[list[str]]:
    """Return the commands of ingest-bench in the shell commands of a manifest, with a number for each variable."""
    argvs = [json.loads(text) for text in re.findall(r"^ *command: (\[.*\])$", manifest.read_text(), re.MULTILINE)]
    assert all(argv[:2] == ["sh", "-c"] for argv in argvs)
    texts = [re.sub(r"\$\(\(.*?\)\)|\$\w+", "1", argv[2]) for argv in argvs]
    return [shlex.split(command) for text in texts for command in re.findall("ingest-bench (?:run|worker) [^&]+", text)]


def test_image_copies_what_exists_and_runs_as_an_ordinary_user() -> None:
    build, image = read_stages(FOLDER / "Containerfile")
    sources = [source for name, text in build if name == "COPY" for source in text.split()[:-1]]
    assert all((ROOT / source).exists() for source in sources)
    packaged = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert {*packaged["packages"], *packaged["force-include"]} <= set(sources)
    values = dict(image)
    assert values["USER"] not in ("0", "root")
    assert json.loads(values["ENTRYPOINT"]) == ["ingest-bench"]
    runs = [text.split() for name, text in image if name == "RUN"]
    assert {"iproute2", "procps", "util-linux"} <= {word for words in runs for word in words}
    for words in runs:
        if words[0] == "ingest-bench":
            parsed(words[1:])


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda manifest: manifest.name)
def test_commands_of_a_manifest_are_accepted(manifest: Path) -> None:
    commands = read_commands(manifest)
    assert commands
    assert len(commands) == manifest.read_text().count("image: ingest-bench\n")
    for command in commands:
        assert command[0] == "ingest-bench"
        parsed(command[1:])


def test_workers_of_the_manifest_are_those_that_the_run_waits_for() -> None:
    text = (FOLDER / "kubernetes.yaml").read_text()
    (workers,) = re.findall(r"--workers (\d+)", text)
    assert re.findall(r"(?:completions|parallelism): (\d+)", text) == [workers, workers]
    page = (ROOT / "docs" / "containers.md").read_text().partition("### An observer")[0]
    assert len(re.findall(r"--from-file keys/worker-\d+\.key", page)) == int(workers)


def test_pytest_comes_with_locust_only() -> None:
    requirements = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    names = [re.split("[<>=]", requirement)[0] for requirement in requirements]
    required = {
        name
        for name in names
        for text in importlib.metadata.requires(name) or ()
        if re.match(r"pytest\b", text) and "extra ==" not in text
    }
    assert "pytest" not in names
    assert required == {"locust"}
