"""Writes what is made from proto/taskmill/v1/taskmill.proto: messages and stubs for Python, with their types, into src/taskmill/server/grpc/v1, and the tables
of docs/api/grpc.md.

`python tools/write_stubs.py` after a change of the .proto file; a test generates again and compares, so what lags behind is found. A folder given as argument
is written to instead.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from google.protobuf import descriptor_pb2
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"
SOURCE = "taskmill/v1/taskmill.proto"
"""The name under which the file is known to everybody who imports it: stubs of a client in the same process must not contradict ours."""
PACKAGE = "taskmill.server.grpc.v1"
TARGET = ROOT / "src" / Path(*PACKAGE.split("."))
FILES = ("taskmill_pb2.py", "taskmill_pb2.pyi", "taskmill_pb2_grpc.py", "taskmill_pb2_grpc.pyi")
PAGE = ROOT / "docs" / "api" / "grpc.md"
TABLES = re.compile(r"(?<=<!-- from the .proto file -->\n).*?(?=<!-- end -->)", re.DOTALL)

Field = descriptor_pb2.FieldDescriptorProto


def compiled(*outputs: str) -> None:
    included = Path(protoc.__file__).parent / "_proto"
    if protoc.main(["protoc", f"-I{PROTO}", f"-I{included}", *outputs, SOURCE]) != 0:
        raise SystemExit(1)


def generate(target: Path) -> None:
    """protoc puts code where the file's own name says; ours lives in a package of the server, so imports are moved there."""
    with tempfile.TemporaryDirectory() as folder:
        compiled(*(f"--{kind}_out={folder}" for kind in ("python", "mypy", "grpc_python", "mypy_grpc")))
        for name in FILES:
            text = (Path(folder) / "taskmill" / "v1" / name).read_text(encoding="utf-8")
            text = text.replace("from taskmill.v1 import", f"from {PACKAGE} import").replace("import taskmill.v1.", f"import {PACKAGE}.")
            (target / name).write_text(text, encoding="utf-8")


# The page


def with_tables(text: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        compiled(f"--descriptor_set_out={folder}/set", "--include_source_info")
        [file] = descriptor_pb2.FileDescriptorSet.FromString((Path(folder) / "set").read_bytes()).file
    said = {tuple(place.path): " ".join(place.leading_comments.split()) for place in file.source_code_info.location}
    return TABLES.sub(lambda _: "\n".join(_tables(file, said)) + "\n", text)


def _tables(file: descriptor_pb2.FileDescriptorProto, said: dict[tuple[int, ...], str]) -> Iterator[str]:
    """Numbers in a path are those of the fields of FileDescriptorProto and its kind."""
    for number, service in enumerate(file.service):
        yield from (f"### `{file.package}.{service.name}`", "", said.get((6, number), ""), "", "| RPC | request | answer | meaning |", "|---|---|---|---|")
        for inner, method in enumerate(service.method):
            asked, answered = _streamed(method.input_type, method.client_streaming), _streamed(method.output_type, method.server_streaming)
            yield f"| `{method.name}` | {asked} | {answered} | {_cell(said.get((6, number, 2, inner), ''))} |"
        yield ""
    yield from ("### Messages", "", "| message | field | type | meaning |", "|---|---|---|---|")
    for number, message in enumerate(file.message_type):
        yield f"| `{message.name}` | | | {_cell(said.get((4, number), ''))} |"
        maps = {entry.name: entry for entry in message.nested_type if entry.options.map_entry}
        for inner, field in enumerate(message.field):
            yield f"| `{message.name}` | `{field.name}` | {_type(field, maps)} | {_cell(said.get((4, number, 2, inner), ''))} |"
    yield from ("", "### Enums", "", "| enum | value | meaning |", "|---|---|---|")
    for number, enum in enumerate(file.enum_type):
        yield f"| `{enum.name}` | | {_cell(said.get((5, number), ''))} |"
        for inner, value in enumerate(enum.value[1:], 1):
            yield f"| `{enum.name}` | `{value.name}` | {_cell(said.get((5, number, 2, inner), ''))} |"


def _streamed(name: str, streaming: bool) -> str:
    return f"{'stream of ' * streaming}`{name.rpartition('.')[2]}`"


def _type(field: Field, maps: dict[str, descriptor_pb2.DescriptorProto]) -> str:
    entry = maps.get(field.type_name.rpartition(".")[2])
    if entry is not None:
        return f"map of {_plain(entry.field[1])} by {_plain(entry.field[0])}"
    optional = " (optional)" if field.proto3_optional else ""
    return f"{'repeated ' * (field.label == Field.LABEL_REPEATED)}{_plain(field)}{optional}"


def _plain(field: Field) -> str:
    return field.type_name.rpartition(".")[2] or Field.Type.Name(field.type).removeprefix("TYPE_").lower()


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main(arguments: Sequence[str]) -> int:
    if shutil.which("protoc-gen-mypy") is None:
        print("write_stubs: protoc-gen-mypy is not on PATH (run it with the environment's bin folder on PATH)", file=sys.stderr)
        return 1
    if arguments:
        generate(Path(arguments[0]))
        return 0
    generate(TARGET)
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
