"""`segmentlog schemas`: what a schema registry's topic holds, as files, and as the calls that recreate the registry."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import click

from storage_core.cli.flags import ReadCommand, output_flag, paths_argument, read_flags, zone_of
from storage_core.cli.output import Output, printable
from storage_core.errors import OptionError
from storage_core.views.texts import count_text

if TYPE_CHECKING:
    from storage_core.dump.schemas import RestorePlan
    from storage_core.filesystem import ReadableFileSystem
    from storage_core.options import ReadOptions


# These columns fit a terminal. The other formats have all.
_SHOWN: Final = ("subject", "version", "id", "type", "state", "offset", "timestamp", "hasDuplicateId")
_FLAG_TEXTS: Final = {
    "where": "A condition that rows must meet, as `offset >= 100 AND timestamp < '-1 hour'`: `offset` and `timestamp` of the "
    "schema's record compared with literals, with `AND`, `OR`, `NOT`.",
    "mode": "What a damaged range of the topic does: fail the command, or be left out with a warning.",
}


@click.command("schemas", cls=ReadCommand)
@paths_argument
@read_flags(
    *(
        "schemasTopic",
        "where",
        "timeZone",
        "mode",
        "maxDecompressedBatchBytes",
        "ignoreCheckpoints",
        "followSymlinks",
    ),
    texts=_FLAG_TEXTS,
)
@click.option(
    "--export",
    "target",
    type=click.Path(),
    metavar="FOLDER",
    help="Write each schema to a file named by its id, and schemas.json, which lists them with subjects, versions and "
    "references, to a new or an empty directory.",
)
@click.option(
    "--restore-plan",
    is_flag=True,
    help="Print a shell script that recreates subjects, versions and ids in an empty registry with curl; with --output jsonl, "
    "its calls as JSON.",
)
@output_flag()
def command(
    paths: tuple[str, ...], options: dict[str, object], target: str | None, restore_plan: bool, output: Output
) -> None:
    """Show the schemas in the topic of a schema registry, with subjects, versions, ids, references and states.

    DIR is the log directory of a broker that has the topic _schemas, or a folder that --export wrote.
    """
    from storage_core.options import options_of  # noqa: PLC0415
    from storage_core.tier import open_file_system  # noqa: PLC0415

    if target is not None and restore_plan:
        raise OptionError("--export and --restore-plan are two commands. Run one after the other.")
    parsed = options_of(
        paths, {"mode": "DROPMALFORMED", **options, "schemasPath": list(paths), "view": "schemas"}
    )
    filesystem = open_file_system(parsed.storage)
    if target is not None:
        _export(filesystem, parsed, target, output)
    elif restore_plan:
        _print_plan(filesystem, parsed, output)
    else:
        _print_rows(filesystem, parsed, output, options)


def _print_rows(
    filesystem: ReadableFileSystem, parsed: ReadOptions, output: Output, options: dict[str, object]
) -> None:
    import pyarrow as pa  # noqa: PLC0415

    from storage_core.views.view import plan_view, read_view_task, view_schema  # noqa: PLC0415

    full = view_schema(parsed)
    schema = pa.schema([full.field(name) for name in _SHOWN]) if output.format == "table" else full
    batches = (
        batch for task in plan_view(filesystem, parsed) for batch in read_view_task(filesystem, task, schema)
    )
    output.write_batches(schema, batches, zone=zone_of(options))


def _export(filesystem: ReadableFileSystem, parsed: ReadOptions, target: str, output: Output) -> None:
    from storage_core.dump.schemas import export_schemas  # noqa: PLC0415
    from storage_core.scan.schemas_topic import load_registry, source_paths  # noqa: PLC0415

    registry = load_registry(filesystem, parsed)
    done = export_schemas(filesystem.local, registry, target, source_paths(filesystem, parsed))
    output.write_report(
        done,
        lambda console: console.print(
            f"{count_text(done.versions, 'schema')} in {count_text(done.files, 'file')}: {printable(done.target)}",
            soft_wrap=True,
        ),
    )


def _print_plan(filesystem: ReadableFileSystem, parsed: ReadOptions, output: Output) -> None:
    from storage_core.dump.schemas import plan_restore  # noqa: PLC0415
    from storage_core.scan.schemas_topic import load_registry  # noqa: PLC0415

    if output.format not in {"table", "jsonl"}:
        raise OptionError(f"--restore-plan prints a script, or JSON lines: found --output {output.format}.")
    plan: RestorePlan = plan_restore(load_registry(filesystem, parsed))
    pieces = plan.script() if output.format == "table" else (f"{call.as_json}\n" for call in plan.calls)
    for piece in pieces:
        sys.stdout.write(piece)
    for line in plan.left_out:
        click.echo(printable(f"segmentlog: not in the plan: {line}"), err=True)
