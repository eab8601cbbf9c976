"""`worker`: this machine sends a part of the loads of `run --workers` elsewhere; and what `run` needs for that."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ingest_bench.cli import screen
from ingest_bench.errors import SpecError
from ingest_bench.inputs import credentials, records, urls
from ingest_bench.lab.steps import track_steps
from ingest_bench.load.fleet import join, keys, roster
from ingest_bench.load.fleet.roster import PORT, Fleet, Remote
from ingest_bench.load.live import exporter
from ingest_bench.load.live.exporter import Exporter
from ingest_bench.model.experiment import Plan
from ingest_bench.model.target import Endpoint, Url

app = typer.Typer()

_KEYS = "INGEST_BENCH_KEYS"
_CREDENTIALS_TO = "INGEST_BENCH_CREDENTIALS_TO"

Workers = Annotated[
    int | None,
    typer.Option(help="Let so many `ingest-bench worker` send the load, from other machines; needs --url.", min=1),
]
Bind = Annotated[
    str | None,
    typer.Option(help=f"Where they join: HOST or HOST:PORT. 127.0.0.1:{PORT} when not given."),
]
RunKeys = Annotated[
    Path | None,
    typer.Option(
        "--keys", envvar=_KEYS, help="Which workers may join: the file run.key of `ingest-bench worker --new-keys DIR`."
    ),
]
LocustWeb = Annotated[
    str | None,
    typer.Option(help="Show Locust's own page there while loads run: HOST:PORT. It can be looked at, and no more."),
]


Prometheus = Annotated[
    str | None,
    typer.Option(
        metavar="[HOST:]PORT",
        help="Give live figures to Prometheus there, at /metrics, while loads run. Without a host: on 127.0.0.1.",
    ),
]


@app.command()
def worker(
    context: typer.Context,
    connect: Annotated[
        str | None,
        typer.Option(help=f"Where `run --workers` waits: HOST or HOST:PORT, port {PORT} when none is given."),
    ] = None,
    key_file: Annotated[
        Path | None, typer.Option("--keys", envvar=_KEYS, help="This worker's key: a file such as worker-1.key.")
    ] = None,
    credentials_to: Annotated[
        str | None,
        typer.Option(
            envvar=_CREDENTIALS_TO,
            metavar="URL",
            help="The one server that gets the credentials in this machine's environment, whoever leads the load.",
        ),
    ] = None,
    ca_file: Annotated[
        Path | None,
        typer.Option(help="The CA certificate (PEM) that vouches for that server. This machine's own when not given."),
    ] = None,
    new_keys: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Make new keys in this folder: run.key for `run`, and one for each worker."),
    ] = None,
    count: Annotated[int, typer.Option(help="For how many workers --new-keys makes keys.", min=1)] = 8,
) -> None:
    """Send a part of the loads of an experiment that runs on another machine, as one process.

    It ends with the experiment. Several on one machine are fine: start one for each core that may send.

    `ingest-bench worker --new-keys DIR` makes the keys. run.key stays where `run` is; each worker gets one of the
    others. Who has a key that the other side knows may join, and nobody else; all that is said is encrypted.

    A corpus (--documents, --track) must be here at the same path as there.
    """
    if new_keys is not None:
        joins = {
            "connect": "--connect",
            "key_file": "--keys",
            "credentials_to": "--credentials-to",
            "ca_file": "--ca-file",
        }
        if given := ", ".join(option for name, option in joins.items() if _is_typed(context, name)):
            raise SpecError(f"--new-keys makes keys and joins nobody; take out {given}")
        run_key, *workers = keys.write_new(new_keys, count)
        screen.say(f"{run_key}: for `ingest-bench run --workers N --keys`; it stays here")
        screen.say(
            f"{workers[0]} … {workers[-1].name}: for one `ingest-bench worker --keys` each; copy it there by ssh"
        )
        return
    if _is_typed(context, "count"):
        raise SpecError("--count is how many keys --new-keys DIR makes; where?")
    if connect is None:
        raise SpecError("--connect says where `run --workers` waits; or --new-keys DIR makes the keys for both")
    server = None if credentials_to is None else _url(credentials_to)
    if ca_file is not None and (server is None or server.scheme != "https"):
        raise SpecError("--ca-file requires --credentials-to https://HOST:PORT, the server that it vouches for")
    joining = join.Joining(
        master=join.endpoint(connect),
        keys=keys.read_worker(_given(key_file, "worker-1.key")),
        credentials_to=server,
        ca_pem="" if ca_file is None else credentials.ca_certificates(ca_file),
    )
    with join.own_folder() as folder:
        join.join(joining, folder, screen.say)


def asked(context: typer.Context, workers: int | None, bind: str | None, key_file: Path | None) -> Remote | None:
    """How `run` waits for workers; None: it does not. SpecError when nobody could say who they are."""
    if workers is None:
        if bind is not None:
            raise SpecError("--bind is where --workers N join; how many?")
        if _is_typed(context, "keys"):
            raise SpecError("--keys says which of --workers N may join; how many?")
        return None
    found = keys.read_run(_given(key_file, keys.RUN_FILE))
    return Remote(bind=join.endpoint(bind or "127.0.0.1"), workers=workers, keys=found)


def web(text: str | None) -> Endpoint | None:
    """Where Locust's page is shown; None: nowhere."""
    if text is None:
        return None
    _need_port("--locust-web", text, "127.0.0.1:8089")
    return join.endpoint(text)


def exported(text: str | None) -> contextlib.AbstractContextManager[Exporter | None]:
    """The exporter of `--prometheus`, for the block's time; None when nobody asked for it."""
    if text is None:
        return contextlib.nullcontext()
    _need_port("--prometheus", text, "9464, 127.0.0.1:9464 or [::1]:9464")
    alone = text.removeprefix(":")
    return exporter.exported(join.endpoint(f"127.0.0.1:{alone}" if alone.isdigit() else text))


def check(remote: Remote | None, plans: Sequence[Plan]) -> None:
    """SpecError for what workers on other machines cannot send, and for an interface that the load does not cross."""
    for cell in (run.cell for plan in plans for run in plan.runs):
        if cell.target.interface is not None and bool(cell.target.interface.port) != bool(remote):
            raise SpecError(
                "--workers: the load leaves other machines, and --interface is one of this one; give --port where the "
                "server is here"
                if remote
                else "--port: the server is here, so the load comes from other machines: --workers N"
            )
    for cell in (run.cell for plan in plans for run in plan.runs) if remote else ():
        if cell.target.url is None:
            raise SpecError(
                "--workers: a server of ours stands in a network of its own, which other machines do not reach; "
                "measure one that runs already: --url URL"
            )
        if cell.load.processes != 1:
            raise SpecError("--workers: each worker is one process; take out processes, and start more workers")
        if cell.load.track is not None and any(step.group for step in track_steps.read(cell.load.track).steps):
            raise SpecError("--workers: parallel tasks of a track are sent by processes of this machine only")


def joined(remote: Remote | None, shown: Endpoint | None) -> contextlib.AbstractContextManager[Fleet | None]:
    """The workers that joined, for the block's time; None when nobody was asked for."""
    return roster.joined(remote, screen.say, shown) if remote else contextlib.nullcontext()


def _given(path: Path | None, name: str) -> Path:
    if path is None:
        raise SpecError(
            f"--keys (or the environment's {_KEYS}) must be the path of a file such as {name}; "
            "`ingest-bench worker --new-keys DIR` makes them"
        )
    return path


def _is_typed(context: typer.Context, name: str) -> bool:
    """Whether that option was: the environment may name what is for other commands."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _need_port(option: str, text: str, like: str) -> None:
    if not text.rpartition(":")[2].isdigit():
        raise SpecError(f"{option} {text}: write it like {like}")


def _url(text: str) -> Url:
    try:
        url = urls.parse(text)
    except ValueError as error:
        raise SpecError(f"--credentials-to: {error}") from None
    records.check(url, "--credentials-to")
    return url
