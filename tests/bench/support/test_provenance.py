"""The names of machines: GPUs that CUDA shows a process, of all that a stand-in for nvidia-smi lists; what is saved."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from workflow.bench.support import provenance
from workflow.bench.support.config import ConfigError
from workflow.bench.support.provenance import machine_name, save_machine_name

A100 = "NVIDIA A100-SXM4-40GB"
FULL = f"{A100}, 550.54, 40960 MiB"

# Two whole GPUs, and one in MIG mode with two slices.
SMI = f"""#!/bin/sh
case $1 in
    --query-gpu=name,uuid,driver_version,memory.total)
        for uuid in GPU-aa01 GPU-aa02 GPU-bb03; do echo "{A100}, $uuid, 550.54, 40960 MiB"; done ;;
    --list-gpus)
        echo "GPU 0: {A100} (UUID: GPU-aa01)"
        echo "GPU 1: {A100} (UUID: GPU-aa02)"
        echo "GPU 2: {A100} (UUID: GPU-bb03)"
        echo "  MIG 3g.20gb     Device  0: (UUID: MIG-c01)"
        echo "  MIG 1g.5gb      Device  1: (UUID: MIG-c02)" ;;
    *) exit 2 ;;
esac
"""


@pytest.fixture(autouse=True)
def _stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "nvidia-smi").write_text(SMI)
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    forget()
    yield
    forget()


def forget() -> None:
    """Empty the caches, which last as long as a process."""
    provenance._visible_gpus.cache_clear()
    provenance.machine.cache_clear()


@pytest.mark.parametrize(
    ("visible", "name", "gpus"),
    [
        ("0,1", "2x-nvidia-a100-sxm4-40gb", [FULL] * 2),
        ("1", "nvidia-a100-sxm4-40gb", [FULL]),
        ("GPU-aa02", "nvidia-a100-sxm4-40gb", [FULL]),
        ("GPU-aa01, GPU-bb", "nvidia-a100-sxm4-40gb-mig-3g-20gb", [FULL.replace(",", " MIG 3g.20gb,", 1)]),
        ("MIG-c02", "nvidia-a100-sxm4-40gb-mig-1g-5gb", [FULL.replace(",", " MIG 1g.5gb,", 1)]),
        ("2", "nvidia-a100-sxm4-40gb-mig-3g-20gb", [FULL.replace(",", " MIG 3g.20gb,", 1)]),
        # CUDA ignores what follows an entry that names no GPU, or more than one.
        ("0,7,1", "nvidia-a100-sxm4-40gb", [FULL]),
        ("0,GPU-aa,1", "nvidia-a100-sxm4-40gb", [FULL]),
        ("", provenance.NO_GPU, []),
        ("-1", provenance.NO_GPU, []),
    ],
)
def test_the_hardware_s_name_is_that_of_the_gpus_that_cuda_shows(
    visible: str, name: str, gpus: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert provenance.hardware_name("cuda") == name
    assert provenance.machine()["gpus"] == gpus
    assert len(provenance.gpu_names()) == len(gpus)


def test_without_a_choice_the_hardware_is_all_gpus_and_of_one_in_mig_mode_a_slice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert provenance.hardware_name("cuda") == "nvidia-a100-sxm4-40gb-mig-3g-20gb"
    forget()
    whole = "\n".join(line for line in SMI.splitlines() if "MIG" not in line).replace('GPU-bb03)"', 'GPU-bb03)" ;;')
    (tmp_path / "nvidia-smi").write_text(whole)
    assert provenance.hardware_name("cuda") == "3x-nvidia-a100-sxm4-40gb"


def test_the_machines_name_is_kept(tmp_path: Path):
    name = machine_name(tmp_path, "cpu")
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    save_machine_name(tmp_path, "cpu", name)
    assert json.loads((tmp_path / "hardware").read_text()) == {"cpu": name}
    (tmp_path / "hardware").write_text(json.dumps({"cpu": "another-name"}))
    assert machine_name(tmp_path, "cpu") == "another-name"
    save_machine_name(tmp_path, "cpu", name)
    save_machine_name(tmp_path, "cuda", provenance.NO_GPU)
    assert json.loads((tmp_path / "hardware").read_text()) == {"cpu": "another-name"}


@pytest.mark.parametrize(
    "saved", ["{", '["cpu"]', "1", '{"cpu": 1}', '{"cpu": "../x"}', '{"cpu": "a; touch x"}', "\xff"]
)
def test_a_damaged_file_of_machine_names_is_told_in_one_line(saved: str, tmp_path: Path):
    (tmp_path / "hardware").write_text(saved, encoding="latin-1")
    with pytest.raises(ConfigError, match=f"^{tmp_path}/hardware: "):
        machine_name(tmp_path, "cpu")
