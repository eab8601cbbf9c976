"""What a user can type or write stands in the documentation, and what stands there can be typed and written."""

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

import ingest_bench
from ingest_bench import probes, targets
from ingest_bench.analysis.run.columns import COLUMNS
from ingest_bench.cli import app as cli
from ingest_bench.experiment import catalog, spec
from ingest_bench.inputs import data, records
from ingest_bench.model.experiment import Fault
from ingest_bench.model.host_settings import HostSettings
from ingest_bench.model.load import LoadOptions, TrackChoice
from ingest_bench.model.network import Impairment, Profile, RealLink
from ingest_bench.model.server import Count, Delivered, Ready, Server, Start
from ingest_bench.model.target import TargetOptions
from ingest_bench.model.workload import BulkAction
from ingest_bench.protocols import PROTOCOLS
from ingest_bench.protocols.bulk import BulkKeys
from ingest_bench.protocols.json_array import JsonArrayKeys
from ingest_bench.protocols.kafka import KafkaKeys
from ingest_bench.protocols.rows import RowKeys
from ingest_bench.report.gate import Threshold

ROOT = Path(__file__).parent.parent
PACKAGE = Path(ingest_bench.__file__).parent
RECORDS = [
    Profile,
    RealLink,
    Impairment,
    TargetOptions,
    LoadOptions,
    BulkAction,
    TrackChoice,
    HostSettings,
    Fault,
    Start,
    Ready,
    Count,
    Delivered,
    BulkKeys,
    JsonArrayKeys,
    KafkaKeys,
    RowKeys,
    Threshold,
]
GROUP = typer.main.get_command(cli.app)
# A fenced block: its language, and what is in it.
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def loaded() -> ModuleType:
    found = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


generate = loaded()
PAGES: dict[str, str] = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in generate.pages()}
README = PAGES["README.md"]
WORDS = set(re.findall(r"[\w.-]+", "\n".join(PAGES.values())))
OF_KEYS = set(re.findall(r"^\| `([\w.-]+)`", PAGES["docs/keys.md"], re.MULTILINE))


@pytest.mark.parametrize("record", RECORDS)
def test_every_key_of_a_table_is_documented(record: type) -> None:
    assert set(records.keys(record)) <= OF_KEYS


def test_every_key_of_a_server_is_documented() -> None:
    # `folder` is not written: it is where the file lies.
    assert set(records.keys(Server)) - {"folder"} <= OF_KEYS


def test_every_key_of_an_experiment_is_documented() -> None:
    assert set(spec.TOP) <= set(re.findall(r"[\w.-]+", PAGES["docs/keys.md"]))


def test_every_key_has_a_meaning_and_says_what_it_may_be() -> None:
    rows = [line for line in generate.keys().splitlines() if line.startswith("| `")]
    assert len(rows) > 150
    for row in rows:
        _, allowed, _, meaning = (cell.strip() for cell in row.replace("\\|", "").strip("|").split("|"))
        assert meaning, row
        assert allowed not in {"", "a value"}, row


def test_every_column_is_documented() -> None:
    documented = set(re.findall(r"^\| `(\w+)`", PAGES["docs/columns.md"], re.MULTILINE))
    assert {column.name.removesuffix("_per_gb") for column in COLUMNS} <= documented


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_takes_from_the_code_is_up_to_date(page: str) -> None:
    assert generate.filled(PAGES[page]) == PAGES[page], "run: python docs/generate.py"


def test_a_page_that_says_something_else_than_the_code_is_noticed() -> None:
    old = PAGES["docs/keys.md"]
    assert generate.filled(old.replace("`think_time`", "`thinking`")) == old


@pytest.mark.parametrize(
    "names",
    [
        data.files(catalog.EXPERIMENTS),
        data.files(catalog.NETWORKS),
        data.files(catalog.WORKLOADS),
        targets.TARGETS,
        PROTOCOLS,
        probes.PROBES,
    ],
    ids=["experiments", "network profiles", "workloads", "targets", "protocols", "probes"],
)
def test_every_name_is_documented(names: dict[str, object]) -> None:
    assert set(names) <= WORDS


def test_every_command_and_each_of_its_options_says_what_it_does() -> None:
    for path, command in commands(GROUP, "ingest-bench"):
        assert path.rpartition(" ")[2] in WORDS, f"{path} is in no page"
        assert command.help, f"{path} has no help"
        for parameter in command.params:
            if parameter.name != "help":
                assert getattr(parameter, "help", None), f"{path}: {parameter.name} has no help"


def test_every_variable_of_the_environment_is_documented_and_none_that_nobody_reads() -> None:
    documented = {word for word in WORDS if word.startswith("INGEST_BENCH_")}
    source = "".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    assert documented == set(re.findall(r"INGEST_BENCH_[A-Z_]+", source))


# The front page.


def test_the_front_page_is_short_and_has_the_two_commands() -> None:
    assert len(README.splitlines()) <= 150
    blocks = {body for _, body in BLOCK.findall(README)}
    assert "pip install . && ingest-bench run quickstart\n" in blocks
    assert "pip install nox && nox\n" in blocks


def test_each_finding_has_its_command_and_the_numbers_of_the_reference_results(monkeypatch: pytest.MonkeyPatch) -> None:
    found = generate.findings()
    assert found in README
    for name in ("es-23185", "cassandra-2463", "direct-buffers", "peer-forwarding", "huge-pages"):
        assert f"`ingest-bench run {name}`" in found
    rows = generate.reference("cassandra-2463", "summary.csv")
    changed = [{**row, "allocations_100mib": "987"} for row in rows]
    other = {("cassandra-2463", "summary.csv"): changed}
    of_files = generate.reference
    monkeypatch.setattr(
        generate, "reference", lambda experiment, name: other.get((experiment, name)) or of_files(experiment, name)
    )
    assert "987 times" in generate.findings()


def test_huge_pages_have_the_response_times_of_their_reference_result_once_it_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = {"always": ("900", "950", "990"), "madvise": ("120",), "never": ("80", "90")}
    rows = [
        {"state": "measured", "host.transparent_hugepages": level, "fault": fault, "response_ms_p99": value}
        for level, values in times.items()
        for fault, value in [*(("none", each) for each in values), ("fragmented", "5000")]
    ]
    monkeypatch.setattr(generate, "reference", lambda *_: rows)
    assert "always 950 ms, madvise 120 ms, never 85 ms" in generate._huge_pages()


# What stands in the pages.


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
def test_every_file_of_the_project_that_a_page_names_is_there(page: str) -> None:
    for name in re.findall(r"`((?:tests|ingest_bench|docs|netem|workloads)/[\w./-]*\.\w+)`", PAGES[page]):
        assert (ROOT / name).exists() or name == "ingest_bench/targets/NAME.py", name


def test_every_page_can_be_reached_from_the_front_page() -> None:
    for page in PAGES:
        assert page == "README.md" or f"({page})" in README, page


def test_no_text_stands_twice() -> None:
    seen: dict[str, str] = {}
    for page, text in PAGES.items():
        prose = BLOCK.sub("", re.sub(r"<details>.*?</details>", "", text, flags=re.DOTALL))
        for paragraph in re.split(r"\n\n|\n(?=[|#-])", prose):
            for sentence in re.split(r"(?<=[.:]) ", " ".join(paragraph.split())):
                if len(sentence) > 70 and not sentence.startswith("|"):
                    assert sentence not in seen, f"{page} and {seen[sentence]}: {sentence}"
                    seen[sentence] = page


RIDDLES = ("for nobody", "all right before the first run", "as ever", "at no time nobody", "nobody knows")


@pytest.mark.parametrize("page", PAGES)
def test_the_prose_has_no_riddles(page: str) -> None:
    written = re.sub(r"(<!-- generated.*?<!-- end -->)", "", PAGES[page], flags=re.DOTALL)
    assert not [riddle for riddle in RIDDLES if riddle in " ".join(written.split())]


def test_the_messages_of_the_index_of_errors_are_those_of_the_program() -> None:
    messages = re.findall(r"^\| `(.+?)` \|", PAGES["docs/errors.md"], re.MULTILINE)
    assert len(messages) > 30
    texts = [" ".join(text.split()) for text in said()]
    for message in messages:
        pieces = [re.escape(" ".join(piece.split())) for piece in message.split("…") if piece.strip()]
        pattern = re.compile(".*".join(pieces))
        assert any(pattern.search(text) for text in texts), message


def said() -> Iterator[str]:
    """The texts of the program, with … where a value stands."""
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


def typed() -> list[tuple[str, str]]:
    """Each command of ours in a fenced block, with its page."""
    found = []
    for page, text in PAGES.items():
        for language, body in BLOCK.findall(text):
            if language == "sh":
                for line in body.replace("\\\n", " ").splitlines():
                    words = shlex.split(line, comments=True)
                    each = " ".join(map(shlex.quote, words)).split(" '&&' ")
                    found += [(page, command) for command in each if command.startswith("ingest-bench ")]
    return found


TYPED = typed()


def test_the_pages_have_commands() -> None:
    assert len(TYPED) > 70
    assert {command.split()[1] for _, command in TYPED} >= {"run", "plan", "net", "gate", "compare", "trend", "worker"}


@pytest.mark.parametrize(("page", "command"), TYPED, ids=[command for _, command in TYPED])
def test_the_command_line_takes_every_command_of_the_pages(page: str, command: str) -> None:
    del page
    parsed(shlex.split(command)[1:])


def test_a_command_that_the_command_line_does_not_take_is_noticed() -> None:
    with pytest.raises(typer.exceptions.TyperException):
        parsed(["run", "quickstart", "--no-such-option"])
    with pytest.raises(typer.exceptions.TyperException):
        parsed(["walk", "quickstart"])


def parsed(words: list[str]) -> Any:
    """The context of a command after all its options and arguments were read; it is not carried out."""
    command: Any = GROUP
    context = command.make_context("ingest-bench", list(words))
    while hasattr(command, "commands"):
        _, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(command.name, rest, parent=context)
    return context


def planned() -> list[str]:
    """The commands that can be planned here: those with a track or results of the user's cannot."""
    return [
        command
        for _, command in TYPED
        if command.split()[1] in {"run", "plan"} and "--track " not in command and "--resume" not in command
    ]


@pytest.fixture(scope="module")
def folder_of_a_reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the pages show or name."""
    folder = tmp_path_factory.mktemp("reader")
    for text in PAGES.values():
        for language, body in BLOCK.findall(text):
            titled = re.match(r"# ([\w-]+\.toml)\n", body)
            if language == "toml" and titled:
                (folder / titled[1]).write_text(body, encoding="utf-8")
    shutil.copytree(ROOT / "docs" / "own-server", folder / "docs" / "own-server")
    for name in ("jetty.toml", "JettyEvents.java"):
        shutil.copy(ROOT / "docs" / "own-server" / name, folder)
    (folder / "jetty.toml").rename(folder / "my-server.toml")
    with (folder / "documents.ndjson").open("w", encoding="utf-8") as file:
        file.writelines(f'{{"number": {number}}}\n' for number in range(10))
    packed(folder / "documents.ndjson", folder / "my-documents.ndjson.zst")
    (folder / "ca.pem").write_text("")
    return folder


def packed(plain: Path, to: Path) -> None:
    import zstandard  # noqa: PLC0415 - of one test

    to.write_bytes(zstandard.compress(plain.read_bytes()))


@pytest.mark.parametrize("command", planned())
def test_every_experiment_of_the_pages_can_be_planned(
    command: str, folder_of_a_reader: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder_of_a_reader)
    # A process that is there.
    words = [str(os.getpid()) if word == "4711" else word for word in shlex.split(command)]
    assert cli.run(["plan", *options_of_plan(words[2:])]) == 0, capsys.readouterr().err
    assert "Nothing was started." in capsys.readouterr().out


def options_of_plan(words: list[str]) -> list[str]:
    """Without the options that `run` alone has."""
    group: Any = GROUP
    plan, run = group.commands["plan"], group.commands["run"]
    shared = {name for parameter in plan.params for name in parameter.opts}
    own = {name: parameter for parameter in run.params for name in parameter.opts if name not in shared}
    kept, rest = [], list(words)
    while rest:
        word = rest.pop(0)
        if word not in own:
            kept.append(word)
        elif not own[word].is_flag:
            rest.pop(0)
    return kept


@pytest.mark.parametrize("page", PAGES)
def test_every_toml_of_the_pages_is_toml(page: str) -> None:
    for language, body in BLOCK.findall(PAGES[page]):
        if language == "toml":
            tomllib.loads(body.replace(", …]", "]"))


def test_the_gate_of_the_pages_is_one() -> None:
    (text,) = (body for _, body in BLOCK.findall(PAGES["docs/nightly-ci.md"]) if body.startswith("# gate.toml"))
    assert len(gate_thresholds(tomllib.loads(text))) == 2


def gate_thresholds(table: dict[str, Any]) -> Any:
    from ingest_bench.report import gate  # noqa: PLC0415 - of one test

    return gate.thresholds(table, "gate.toml")


def named(variables: str | list[str] | None) -> list[str]:
    return [variables] if isinstance(variables, str) else list(variables or ())


def commands(group: Any, path: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, command in group.commands.items():
        found += commands(command, f"{path} {name}") if hasattr(command, "commands") else [(f"{path} {name}", command)]
    return found
