"""What is made from the .proto file is what the file says: stubs, extras, the page of the reference, reflection."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from taskmill.server.grpc.gate import RPCS
from taskmill.server.grpc.v1 import taskmill_pb2 as pb
from taskmill.server.grpc.v1 import taskmill_pb2_grpc as stubs
from tools import write_stubs

ROOT = Path(__file__).resolve().parents[3]
STUBS = ROOT / "src/taskmill/server/grpc/v1"
PAGE = ROOT / "docs/api/grpc.md"


def test_stubs_are_those_of_the_proto_file(tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    subprocess.run([sys.executable, ROOT / "tools/write_stubs.py", tmp_path], check=True, capture_output=True, env=environment)
    made = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    assert len(made) == 4
    for name, text in made.items():
        assert text == (STUBS / name).read_text(encoding="utf-8"), f"{name} lags behind: python tools/write_stubs.py"


def test_the_extra_asks_for_what_the_stubs_need() -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]["grpc"]
    assert f"grpcio>={stubs.GRPC_GENERATED_VERSION}" in extra
    made_with = re.search(r"Protobuf Python Version: ([\d.]+)", (STUBS / "taskmill_pb2.py").read_text(encoding="utf-8"))
    assert made_with is not None
    assert f"protobuf>={made_with[1]}" in extra


def test_without_the_extra_everything_else_works() -> None:
    program = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"grpc", "google", "grpc_health", "grpc_reflection"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
import taskmill, taskmill.server.running, taskmill.cli.program
from taskmill.server.grpc import missing
print(missing())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.stdout, done.stderr) == ('gRPC is off: its libraries are not installed (pip install "taskmill[grpc]")\n', "")


def test_nothing_is_missing_here() -> None:
    from taskmill.server.grpc import missing

    assert missing() is None


# The page


def test_the_page_has_the_tables_of_the_proto_file() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert write_stubs.with_tables(text) == text, "docs/api/grpc.md lags behind: python tools/write_stubs.py"


def test_the_page_names_everything_and_everything_is_explained() -> None:
    rows = {tuple(cell.strip() for cell in line.split("|")[1:-1]) for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")}
    methods = {row[0]: row[-1] for row in rows if row[1].endswith(("Request`", "Credit`"))}
    named = {row[:2]: row[-1] for row in rows}
    for service in pb.DESCRIPTOR.services_by_name.values():
        for method in service.methods:
            assert methods[f"`{method.name}`"], f"{method.name} is not explained"
    for message in pb.DESCRIPTOR.message_types_by_name.values():
        for field in message.fields:
            assert (f"`{message.name}`", f"`{field.name}`") in named
    for enum in pb.DESCRIPTOR.enum_types_by_name.values():
        assert named[f"`{enum.name}`", ""], f"{enum.name} is not explained"
        for value in enum.values[1:]:
            assert (f"`{enum.name}`", f"`{value.name}`") in named


def test_the_page_says_which_scope_every_rpc_needs() -> None:
    """As the table in code has it."""
    text = PAGE.read_text(encoding="utf-8")
    table = text[text.index("| RPCs | scope |") :].split("\n\n")[0].splitlines()[2:]
    said = {name: row.split("|")[2].split(";")[0].strip() for row in table for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert said == {name: rpc.scope.value for named in RPCS.values() for name, rpc in named.items()}
