"""Download the data sets that a tier needs, to where its runs look for them.

    python -m workflow.bench.fetch --tier single_gpu --dry-run
    python -m workflow.bench.fetch --tier single_gpu --what glue squad

Sizes and licenses are printed before anything is downloaded. ``workflow/datasets.yaml`` has the sources. The same
command goes on with an interrupted download. Every file is checked: against the published checksum, against its
publisher's, or, where there is none, against that of the first download, which SHA256SUMS in the data folder keeps.
Copy that file to the data folder of another machine to have the files of both compared. What cannot be downloaded, and
what remains to be done, is named at the end.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from workflow.bench.data.folder import data_folder
from workflow.bench.downloads import catalogue, landing, needs, transfer
from workflow.bench.downloads.catalogue import DownloadableSet, Source, is_here
from workflow.bench.downloads.meter import in_words
from workflow.bench.downloads.needs import Need
from workflow.bench.downloads.transfer import TransferError
from workflow.bench.plan import Plan
from workflow.bench.support.command_line import aligned, run_command, show
from workflow.bench.support.config import CONFIG, ConfigError, shown_path
from workflow.bench.support.files import locked, write_atomically

DEFAULT_TIER: Final = "single_gpu"
DOWNLOADS: Final = "downloads"
"""The folder, in the data folder, of files that have not landed yet."""
SUMS: Final = "SHA256SUMS"
"""The file, in the data folder, of checksums that were first seen here."""
_LOCK: Final = ".fetch.lock"
_SHOWN: Final = 4
"""The most files of a set whose addresses are shown."""
_ANY: Final = "any"  # a name for the hardware: the data is the same on all of it


def overview(plan: Plan, found: Sequence[Need], wanted: Sequence[DownloadableSet]) -> Iterator[str]:
    """Yield a table of what is wanted, the licenses, the bytes to download and the space for them."""
    folder = shown_path(data_folder())
    yield f"what tier '{plan.tier.name}' reads from {folder}:"
    rows = [("what", "set", "", "size", "lands in", "checksum")]
    rows += [(one.what, one.name, _state(one), in_words(one.size), one.folder, one.checksums) for one in wanted]
    shards = [need for need in found if need.sequence_length]
    rows += [(one.what, one.name, _state(one), "", str(one.path.relative_to(data_folder())), "") for one in shards]
    yield from aligned(rows, names=3, remarks=2)
    yield "licenses:"
    for text in dict.fromkeys(each.license for each in wanted):
        yield f"  {', '.join(each.name for each in wanted if each.license == text)}: {text}"
    yield f"to download: {in_words(_left(wanted))}; free in {folder}: {in_words(_free())}"


def _state(each: Need | DownloadableSet) -> str:
    return "here" if each.is_here else "missing"


def _left(wanted: Sequence[DownloadableSet]) -> int:
    """Return the bytes to download."""
    return sum(each.bytes_left for each in wanted)


def _free() -> int:
    """Return the free bytes of the data folder's file system."""
    folder = data_folder().absolute()
    return shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.is_dir())).free


def addresses(wanted: Sequence[DownloadableSet]) -> Iterator[str]:
    """Yield the addresses of what is missing, in the order in which they are tried; of many parts only the first's."""
    yield "from:"
    for each in wanted:
        if not each.is_here:
            shown = each.files if len(each.files) <= _SHOWN else each.files[:1]
            yield from (f"  {each.name}: {' or '.join(source.urls)}" for source in shown if source.urls)
            if len(shown) < len(each.files):
                yield f"  {each.name}: and {len(each.files) - len(shown)} more parts"


def left_to_do(plan: Plan, found: Sequence[Need], wanted: Sequence[DownloadableSet]) -> Iterator[str]:
    """Yield what a user has to do by hand, and the commands after the downloads."""
    for each in wanted:
        if each.by_hand and not each.is_here:
            files = ", ".join(f"{source.name} ({in_words(source.size)})" for source in each.files)
            yield f"{each.name} cannot be downloaded freely ({each.license}):"
            yield f"  1. {each.by_hand} into {shown_path(each.path)}: {files}"
            yield f"  2. {needs.COMMAND} --tier {plan.tier.name} --what {each.what}   # checks and unpacks them"
    if missing := [need for need in found if need.sequence_length and not need.is_here]:
        text = shown_path((data_folder() / catalogue.sets()[needs.CORPUS].folder).parent)
        yield "shards of pre-training are made from text by"
        for need in missing:
            options = f"--documents blank-lines --sequence-length {need.sequence_length}"
            yield f"  python -m workflow.bench.prepare {text} {options}"
        yield f"  the paper also used BookCorpus, which is not distributed; other *.txt files in {text} are read, too"


def bring(wanted: DownloadableSet) -> None:
    """Download a set, check it, and put it where it is read.

    Raises:
        TransferError: a file cannot be downloaded or is a wrong one, or files that a user must get are not there.
        ConfigError: its folder has other content.
        OSError: it cannot be written.
    """
    folder = data_folder() / DOWNLOADS / wanted.name
    try:
        if wanted.unpack == "imagenet":
            landing.unpack_imagenet(wanted.path)
        elif wanted.by_files:
            _bring_files(wanted, folder)
        else:
            _bring_folder(wanted, folder)
    finally:
        # Folders with parts in them stay for the next call.
        with suppress(OSError):
            folder.rmdir()
        with suppress(OSError):
            folder.parent.rmdir()


def _bring_files(wanted: DownloadableSet, folder: Path) -> None:
    """Bring the files of a set that are missing, one by one; each becomes one that the set's folder holds."""
    for source, name in zip(wanted.files, wanted.holds, strict=True):
        downloaded, landed = folder / source.name, wanted.path / name
        if not landed.exists():
            _download(wanted, source, downloaded)
            landed.parent.mkdir(parents=True, exist_ok=True)
            if wanted.unpack:
                landing.write_articles(downloaded, landed)
                downloaded.unlink()
            else:
                os.replace(downloaded, landed)


def _bring_folder(wanted: DownloadableSet, folder: Path) -> None:
    """Bring the archives of a set, and unpack them to its folder."""
    if wanted.path.exists():
        lacking = ", ".join(name for name in wanted.holds if not is_here(wanted.path, (name,)))
        raise ConfigError(f"{shown_path(wanted.path)} lacks {lacking}; move that folder away first")
    for source in wanted.files:
        _download(wanted, source, folder / source.name)
    landing.unpack(wanted, folder)


def _download(wanted: DownloadableSet, source: Source, path: Path) -> None:
    """Download a file, with the checksum that was published, or that its publisher states, or that was seen first."""
    if source.sha256:
        transfer.download(source, path, source.sha256)
        return
    name = f"{wanted.folder}/{source.name}"
    first = _sums().get(name)
    stated = transfer.read_pointer(source.pointer) if source.pointer else None
    if first and stated not in (None, first):
        now = f"its publisher now states the SHA-256 {stated}, and {SUMS} in the data folder has {first}"
        raise TransferError(f"{name}: {now}; remove that line to take the new file")
    found = transfer.download(source, path, stated or first)
    if not first:
        lines = (f"{digest}  {each}\n" for each, digest in sorted({**_sums(), name: found}.items()))
        write_atomically(data_folder() / SUMS, "".join(lines))


def _sums() -> dict[str, str]:
    """Return the checksums that were first seen, by file, as ``sha256sum`` writes them."""
    file = data_folder() / SUMS
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines) if name}


def fetch(wanted: Sequence[DownloadableSet]) -> int:
    """Bring all sets that are missing; return the number of those that failed, after trying all.

    Raises:
        ConfigError: there is no space for them.
    """
    if _left(wanted) > _free():
        space = f"{in_words(_left(wanted))} to download, and {in_words(_free())} are free"
        raise ConfigError(f"{shown_path(data_folder())}: {space}; make room, or set MKOR_DATA")
    failed = 0
    data_folder().mkdir(parents=True, exist_ok=True)
    with locked(data_folder() / _LOCK, lambda: print("waiting for another fetch to end", file=sys.stderr)):
        for each in wanted:
            # Until all files that a user must get are there, there is nothing to unpack.
            if each.is_here or (each.by_hand and not is_here(each.path, tuple(file.name for file in each.files))):
                continue
            try:
                bring(each)
            except (TransferError, ConfigError, OSError) as problem:
                failed += 1
                print(f"{each.name}: {problem}", file=sys.stderr)
            else:
                print(f"{each.name}: in {shown_path(each.path)}", flush=True)
    return failed


def _run(options: argparse.Namespace) -> int:
    plan = Plan.load(options.config_dir, tier=options.tier, hardware=_ANY)
    found = needs.needs(plan)
    if not found:
        print(f"tier '{plan.tier.name}' needs no download: its data comes with the packages")
        return 0
    needed = {need.what for need in found} | {each.what for each in needs.downloads(found)}
    chosen = set(options.what or needed)
    if unneeded := chosen - needed:
        raise ConfigError(f"--what {' '.join(sorted(unneeded))}: tier '{plan.tier.name}' does not need it")
    wanted = [each for each in needs.downloads(found) if each.what in chosen]
    found = [need for need in found if need.what in chosen]
    show(overview(plan, found, wanted))
    failed = 0
    if options.dry_run:
        show(addresses(wanted))
    else:
        try:
            failed = fetch(wanted)
        except KeyboardInterrupt:
            print("interrupted: the same command goes on from here", file=sys.stderr)
            return 130
    show(left_to_do(plan, found, wanted))
    return int(failed > 0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Download the data sets that a tier needs, after printing their sizes and licenses."""
    parser = argparse.ArgumentParser(prog="python -m workflow.bench.fetch", description=main.__doc__)
    kinds = list(dict.fromkeys(each.what for each in catalogue.sets().values()))
    parser.add_argument("--tier", default=DEFAULT_TIER, help="a file of <config>/tiers (default: %(default)s)")
    parser.add_argument("--what", nargs="+", choices=kinds, metavar="WHAT", help=f"only some of {', '.join(kinds)}")
    parser.add_argument("--dry-run", action="store_true", help="print sizes, licenses and addresses, download nothing")
    parser.add_argument("--config-dir", type=Path, default=CONFIG, help="the configuration folder")
    return run_command(parser, _run, arguments)


if __name__ == "__main__":
    sys.exit(main())
