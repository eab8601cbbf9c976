"""Check that commands, keys and names are documented, and that documented ones exist and work."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shlex
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
import zstandard

import ingest_bench
from ingest_bench import probes, targets
from ingest_bench.cli import app as cli
from ingest_bench.experiment import catalog, spec
from ingest_bench.inputs import files
from ingest_bench.protocols.protocol import PROTOCOLS
from ingest_bench.report import gate

ROOT = Path(__file__).parent.parent
PACKAGE = Path(ingest_bench.__file__).parent
GROUP = typer.main.get_command(cli.app)
# A fenced block: language and content.
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


generate = load_generator()
PAGES: dict[str, str] = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in generate.pages()}
README = PAGES["README.md"]
WORDS = set(re.findall(r"[\w.-]+", "\n".join(PAGES.values())))


def test_every_key_of_an_experiment_is_documented() -> None:
    assert set(spec.TOP) <= set(re.findall(r"[\w.-]+", PAGES["docs/keys.md"]))


def test_every_key_has_a_meaning_and_values() -> None:
    rows = [line for line in generate.keys().splitlines() if line.startswith("| `")]
    assert len(rows) > 150
    for row in rows:
        _, allowed, _, meaning = (cell.strip() for cell in row.replace("\\|", "").strip("|").split("|"))
        assert meaning, row
        assert allowed not in {"", "a value"}, row


@pytest.mark.parametrize("page", PAGES)
def test_generated_parts_are_up_to_date(page: str) -> None:
    assert generate.filled(PAGES[page]) == PAGES[page], "run: python docs/generate.py"


@pytest.mark.parametrize(
    "names",
    [
        files.data_files(catalog.EXPERIMENTS),
        files.data_files(catalog.NETWORKS),
        files.data_files(catalog.WORKLOADS),
        targets.TARGETS,
        PROTOCOLS,
        probes.PROBES,
    ],
    ids=["experiments", "network profiles", "workloads", "targets", "protocols", "probes"],
)
def test_every_name_is_documented(names: dict[str, object]) -> None:
    assert set(names) <= WORDS


def test_every_command_and_option_has_help() -> None:
    for path, command in commands(GROUP, "ingest-bench"):
        assert path.rpartition(" ")[2] in WORDS, f"{path} is in no page"
        assert command.help, f"{path} has no help"
        for parameter in command.params:
            if parameter.name != "help":
                assert getattr(parameter, "help", None), f"{path}: {parameter.name} has no help"


def test_documented_environment_variables_are_those_that_the_code_reads() -> None:
    documented = {word for word in WORDS if word.startswith("INGEST_BENCH_")}
    source = "".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    assert documented == set(re.findall(r"INGEST_BENCH_[A-Z_]+", source))


# README.


def test_readme_is_short_and_has_the_two_commands() -> None:
    assert len(README.splitlines()) <= 150
    blocks = {body for _, body in BLOCK.findall(README)}
    assert "pip install . && ingest-bench run quickstart\n" in blocks
    assert "pip install nox && nox\n" in blocks


# Links and text of the pages.


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_file(page: str) -> None:
    folder = (ROOT / page).parent
    links = re.findall(r"\]\(([^)#\s]+)(#[\w-]+)?\)", PAGES[page])
    for link, anchor in links:
        if "://" in link:
            continue
        assert (folder / link).exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)$", (folder / link).read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor[1:] in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_every_project_file_named_in_a_page_exists(page: str) -> None:
    for name in re.findall(r"`((?:tests|ingest_bench|docs|netem|workloads)/[\w./-]*\.\w+)`", PAGES[page]):
        assert (ROOT / name).exists() or "NAME" in name, name


def test_every_test_file_named_in_a_script_exists() -> None:
    names = [
        name
        for script in (ROOT / "noxfile.py", *(ROOT / "benchmarks").glob("*.py"))
        for name in re.findall(r'"(tests/[\w/]+\.py)"', script.read_text(encoding="utf-8"))
    ]
    assert "tests/test_kills.py" in names
    assert [name for name in names if not (ROOT / name).exists()] == []


def test_every_page_is_linked_from_readme() -> None:
    for page in PAGES:
        assert page == "README.md" or f"({page})" in README, page


def test_no_sentence_is_repeated() -> None:
    pages: dict[str, str] = {}
    for page, text in PAGES.items():
        prose = BLOCK.sub("", re.sub(r"<details>.*?</details>", "", text, flags=re.DOTALL))
        for paragraph in re.split(r"\n\n|\n(?=[|#-])", prose):
            for sentence in re.split(r"(?<=[.:]) ", " ".join(paragraph.split())):
                if len(sentence) > 70 and not sentence.startswith("|"):
                    assert sentence not in pages, f"{page} and {pages[sentence]}: {sentence}"
                    pages[sentence] = page


def test_documented_messages_are_those_of_the_program() -> None:
    messages = re.findall(r"^\| `(.+?)` \|", PAGES["docs/errors.md"], re.MULTILINE)
    assert len(messages) > 30
    texts = "\n".join(" ".join(text.split()) for text in program_texts())
    for message in messages:
        pieces = [re.escape(" ".join(piece.split())) for piece in message.split("…") if piece.strip()]
        assert re.search(".*".join(pieces), texts), message


def program_texts() -> Iterator[str]:
    """Yield the string literals of the program, with … for each value."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                yield "".join(
                    part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else "…"
                    for part in node.values
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


# The commands.


def documented_commands() -> list[str]:
    """Return the ingest-bench commands in fenced blocks."""
    documented: dict[str, None] = {}
    for text in PAGES.values():
        for language, body in BLOCK.findall(text):
            if language == "sh":
                for line in body.replace("\\\n", " ").splitlines():
                    words = shlex.split(line, comments=True)
                    parts = " ".join(map(shlex.quote, words)).split(" '&&' ")
                    documented |= dict.fromkeys(part for part in parts if part.startswith("ingest-bench "))
    return list(documented)


COMMANDS = documented_commands()
assert len(COMMANDS) > 70


@pytest.mark.parametrize("command", COMMANDS)
def test_documented_commands_are_accepted(command: str) -> None:
    parsed(shlex.split(command)[1:])


def parsed(words: list[str]) -> Any:
    """Return the context of a command with its options and arguments parsed; it is not executed."""
    command: Any = GROUP
    context = command.make_context("ingest-bench", list(words))
    while hasattr(command, "commands"):
        _, command, arguments = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(command.name, arguments, parent=context)
    return context


def planned() -> list[str]:
    """Return the commands that can be planned here: not those with a track or results of the user."""
    return [
        command
        for command in COMMANDS
        if command.split()[1] in {"run", "plan"} and "--track " not in command and "--resume" not in command
    ]


@pytest.fixture(scope="module")
def reader_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with the files that the pages show or name."""
    folder = tmp_path_factory.mktemp("reader")
    for text in PAGES.values():
        for language, body in BLOCK.findall(text):
            titled = re.match(r"# ([\w-]+\.toml)\n", body)
            if language == "toml" and titled:
                (folder / titled[1]).write_text(body, encoding="utf-8")
    shutil.copytree(ROOT / "docs" / "custom-targets", folder / "docs" / "custom-targets")
    shutil.copy(ROOT / "docs" / "against-itself.toml", folder / "docs")
    for name in ("jetty.toml", "JettyEvents.java"):
        shutil.copy(ROOT / "docs" / "custom-targets" / name, folder)
    (folder / "jetty.toml").rename(folder / "my-server.toml")
    (folder / "documents.ndjson").write_text("".join(f'{{"number": {number}}}\n' for number in range(10)))
    (folder / "my-documents.ndjson.zst").write_bytes(zstandard.compress((folder / "documents.ndjson").read_bytes()))
    shutil.copy(folder / "documents.ndjson", folder / "orders.ndjson")
    (folder / "points.txt").write_text("weather temperature=82 1465839830100400200\n")
    for name in ("orders-mapping.json", "orders-settings.json"):
        (folder / name).write_text("{}")
    (folder / "ca.pem").write_text("")
    return folder


@pytest.mark.parametrize("command", planned())
def test_documented_experiments_can_be_planned(
    command: str, reader_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(reader_folder)
    # A pid that exists.
    words = [str(os.getpid()) if word == "4711" else word for word in shlex.split(command)]
    assert cli.run(["plan", *words[2:]]) == 0, capsys.readouterr().err
    assert "Nothing was started." in capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES)
def test_documented_toml_is_valid(page: str) -> None:
    for language, body in BLOCK.findall(PAGES[page]):
        if language == "toml":
            tomllib.loads(body.replace(", …]", "]"))


def test_documented_gate_is_valid() -> None:
    (text,) = (body for _, body in BLOCK.findall(PAGES["docs/nightly-ci.md"]) if body.startswith("# gate.toml"))
    assert len(gate.parse_thresholds(tomllib.loads(text), "gate.toml")) == 2


def commands(group: Any, path: str) -> list[tuple[str, Any]]:
    leaves: list[tuple[str, Any]] = []
    for name, command in group.commands.items():
        leaves += commands(command, f"{path} {name}") if hasattr(command, "commands") else [(f"{path} {name}", command)]
    return leaves
