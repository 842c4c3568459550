"""The wire contract is light enough for any process to import."""

from __future__ import annotations

import os
import pkgutil
import subprocess
import sys

import pytest

import shoal

HEAVY = (
    "torch",
    "onnx",
    "onnxruntime",
    "gymnasium",
    "grpc",
    "paho",
    "typer",
    "rich",
    "tensorboard",
)
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(shoal.__path__, "shoal.")
    if not module.name.endswith("_pb2_grpc")
)


def imported_with(*modules: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys, {', '.join(modules)}; print(*sys.modules)"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return {name.split(".")[0] for name in done.stdout.split()}


def test_importing_all_of_it_leaves_out_everything_heavy() -> None:
    assert len(MODULES) > 12
    assert not imported_with(*MODULES) & set(HEAVY)


@pytest.mark.parametrize("module", ["shoal.errors", "shoal.logs", "shoal.services", "shoal.config"])
def test_modules_without_arrays_or_messages_need_the_standard_library_only(module: str) -> None:
    third_party = imported_with(module) - set(sys.stdlib_module_names) - {"shoal"}
    assert not third_party & {*HEAVY, "numpy", "google", "backports", "cryptography"}


def test_only_services_need_grpc() -> None:
    assert "grpc" in imported_with("shoal.v1.parameter_server_pb2_grpc")
