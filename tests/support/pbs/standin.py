"""Commands that behave like those of PBS Pro (qsub, qstat, qdel, qselect) and like a site's mpiexec, on this machine.

The folder named by PBS_STANDIN contains the server's state; ``behavior.json`` in it changes `DEFAULTS`: the server
misbehaves.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

DEFAULTS = {
    "start_seconds": 0.0,  # that a job waits in the queue
    "minute_seconds": 60.0,  # the length of a minute of a job's time limit
    "grace_seconds": 5.0,  # between SIGTERM and SIGKILL
    "kill_status": -29,  # Exit_status of a job that ran out of time; 271 for older servers
    "out_of_time": [],  # numbers of jobs whose time is up now
    "hold": [],  # numbers of jobs that are put on hold
    "vanish": [],  # numbers of jobs that are killed and forgotten while they run
    "refuse": [],  # answers to the next calls of qsub, one after the other: [message, exit code]
    "lose_answer": [],  # numbers of jobs that are accepted, although qsub reports that the server is away
    "silent": 0,  # calls of qstat that get no answer
    "live_jobs": 1000,  # the most jobs that a user may have waiting and running
    "forget": False,  # whether the history omits finished jobs
    "mpiexec_code": None,  # the exit code of mpiexec if a rank fails, in place of the rank's own
}
UNKNOWN, FINISHED, AWAY = 153, 35, 255
LIMIT = "qsub: would exceed queue prod's per-user limit of jobs in 'Q' state"


class Server:
    """The state folder of the server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "jobs").mkdir(parents=True, exist_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        with (self.folder / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def behavior(self) -> dict[str, Any]:
        file = self.folder / "behavior.json"
        return {**DEFAULTS, **(json.loads(file.read_text()) if file.exists() else {})}

    def behave(self, **changes: Any) -> None:
        self._write(self.folder / "behavior.json", {**self.behavior(), **changes})

    def jobs(self) -> list[dict[str, Any]]:
        files = sorted((self.folder / "jobs").glob("*.json"), key=lambda file: int(file.stem))
        return [json.loads(file.read_text()) for file in files]

    def job(self, job: str) -> dict[str, Any] | None:
        file = self.folder / "jobs" / f"{job.partition('.')[0]}.json"
        return json.loads(file.read_text()) if file.exists() else None

    def save(self, job: dict[str, Any]) -> None:
        self._write(self.folder / "jobs" / f"{job['number']}.json", job)

    def forget(self, job: dict[str, Any]) -> None:
        (self.folder / "jobs" / f"{job['number']}.json").unlink(missing_ok=True)

    def next_number(self) -> int:
        file = self.folder / "number"
        number = int(file.read_text()) + 1 if file.exists() else 1
        file.write_text(str(number))
        return number

    def called(self, command: str, arguments: list[str]) -> None:
        with (self.folder / "calls").open("a") as file:
            file.write(json.dumps([command, *arguments]) + "\n")

    def calls(self, command: str) -> list[list[str]]:
        file = self.folder / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        return [call[1:] for call in map(json.loads, lines) if call[0] == command]

    @staticmethod
    def _write(path: Path, value: Any) -> None:
        part = path.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(value))
        part.replace(path)


def qsub(server: Server, arguments: list[str]) -> int:
    given: dict[str, Any] = {"-l": []}
    words = list(arguments)
    while words and words[0].startswith("-"):
        name, value = words.pop(0), words.pop(0)
        if name not in ("-N", "-q", "-A", "-l", "-r", "-j", "-o", "-v"):
            return _say("usage: qsub [-a date_time] [-A account_string] ...", 2)
        given[name] = [*given["-l"], value] if name == "-l" else value
    with server.locked():
        behavior = server.behavior()
        if behavior["refuse"]:
            message, code = behavior["refuse"][0]
            server.behave(refuse=behavior["refuse"][1:])
            return _say(message, code)
        if len(words) != 1:
            return _say("qsub: script file:: No such file or directory", 1)
        if not given.get("-A"):
            return _say("qsub: Request rejected.  Reason: No account given", 1)
        asked = dict(part.split("=", 1) for part in given["-l"])
        if not {"select", "walltime", "filesystems"} <= asked.keys():
            return _say("qsub: Resource: filesystems is required to be set.", 1)
        if len(given["-N"]) > 15:
            return _say("qsub: illegal -N value", 2)
        if sum(job["state"] in "QRH" for job in server.jobs()) >= behavior["live_jobs"]:
            return _say(LIMIT, 38)
        number = server.next_number()
        spooled = server.folder / "jobs" / f"{number}.script"
        shutil.copy(words[0], spooled)
        hours, minutes, seconds = map(int, asked["walltime"].split(":"))
        job = {
            "number": number,
            "name": given["-N"],
            "queue": given.get("-q", "debug"),
            "asked": asked,
            "account": given["-A"],
            "seconds": hours * 3600 + minutes * 60 + seconds,
            "output": given.get("-o", ""),
            "variables": dict(part.split("=", 1) for part in given.get("-v", "").split(",") if part),
            "state": "Q",
            "comment": "Not Running: not enough free nodes",
            "where": str(Path.cwd()),
        }
        # If PBS cannot write the output there, it holds the job forever.
        if not Path(job["output"]).parent.is_dir() or number in behavior["hold"]:
            job |= {"state": "H", "comment": "job held, too many failed attempts to run"}
        server.save(job)
        if job["state"] == "Q":
            _start_runner(server, job)
        if number in behavior["lose_answer"]:
            return _say("qsub: cannot connect to server standin (errno=111)", 111)
    print(f"{number}.standin")
    return 0


def qstat(server: Server, arguments: list[str]) -> int:
    with server.locked():
        behavior = server.behavior()
        if behavior["silent"]:
            server.behave(silent=behavior["silent"] - 1)
            return _say("Connection refused\nqstat: cannot connect to server standin (errno=111)", AWAY)
        asked = arguments[-1]
        job = server.job(asked)
    if job is None:
        return _say(f"qstat: Unknown Job Id {asked}", UNKNOWN)
    if job["state"] == "F" and "-x" not in arguments:
        return _say(f"qstat: {asked} Job has finished, use -x or -H to obtain historical job information", FINISHED)
    shown = {
        "Job_Name": job["name"],
        "job_state": job["state"],
        "queue": job["queue"],
        "comment": job["comment"],
        **({"Hold_Types": "s"} if job["state"] == "H" else {}),
        "Resource_List.walltime": _clock(job["seconds"]),
        **({"resources_used.walltime": _clock(job["used"])} if "used" in job else {}),
        **({"Exit_status": job["exit_status"]} if "exit_status" in job else {}),
        "Variable_List": "PBS_O_HOME=/home/user,PBS_O_LANG=C.UTF-8,\n\tPBS_O_QUEUE=prod",
    }
    print(f"Job Id: {job['number']}.standin")
    for name, value in shown.items():
        text = f"    {name} = {value}"
        print(re.sub(r"(?<=.{78})(?=.)", "\n\t", text, count=1))
    return 0


def qdel(server: Server, arguments: list[str]) -> int:
    code = 0
    with server.locked():
        for asked in arguments:
            job = server.job(asked)
            if job is None:
                code = _say(f"qdel: Unknown Job Id {asked}", UNKNOWN)
            elif job["state"] == "F":
                code = _say(f"qdel: Job has finished {asked}", FINISHED)
            elif job["state"] == "R":
                server.save({**job, "deleted": True})
            else:
                server.save({**job, "state": "F", "comment": "Job was deleted before it began"})
    return code


def qselect(server: Server, arguments: list[str]) -> int:
    name = arguments[arguments.index("-N") + 1]
    for job in server.jobs():
        if job["name"] == name and (job["state"] != "F" or "-x" in arguments):
            print(f"{job['number']}.standin")
    return 0


def run(server: Server, number: str) -> None:
    """Take a job from the queue to its end, in a separate process."""
    behavior = server.behavior()
    time.sleep(behavior["start_seconds"])
    with server.locked():
        job = server.job(number)
        if job is None or job["state"] != "Q":
            return
        process = _start(server, job)
        job |= {"state": "R", "comment": "Job run", "session": process.pid}
        server.save(job)
    began = time.monotonic()
    limit = job["seconds"] / 60 * behavior["minute_seconds"]
    exit_status: int | None = None
    while process.poll() is None:
        time.sleep(0.02)
        present = server.behavior()
        if int(number) in present["vanish"]:
            with server.locked():
                _end_session(process, 0)
                server.forget(job)
            return
        now = server.job(number)
        if now is not None and now.get("deleted"):
            exit_status = 271
        elif time.monotonic() - began > limit or int(number) in present["out_of_time"]:
            exit_status = behavior["kill_status"]
        if exit_status is not None:
            _end_session(process, present["grace_seconds"])
    code = process.returncode
    used = round((time.monotonic() - began) / behavior["minute_seconds"] * 60)
    job |= {
        "state": "F",
        "comment": "Job run and finished" if exit_status is None else "Job run and was killed",
        "used": used,
        "exit_status": exit_status if exit_status is not None else code if code >= 0 else 256 - code,
    }
    with server.locked():
        if behavior["forget"]:
            server.forget(job)
        else:
            server.save(job)


def mpiexec(arguments: list[str]) -> int:
    """Start a command as ranks on this machine, and end them all when one fails."""
    count, each, words, extra = 1, 1, list(arguments), {}
    while words[0].startswith("-"):
        option, _, value = words.pop(0).partition("=")
        if option in ("-n", "--ppn", "--cpu-bind", "--env", "-d", "--depth") and not value:
            value = words.pop(0)
        if option == "-n":
            count = int(value)
        elif option == "--ppn":
            each = int(value)
        elif option == "--env":
            name, _, setting = value.partition("=")
            extra[name] = setting
    ranks = []
    for rank in range(count):
        place = {"PMI_RANK": rank, "PMI_SIZE": count, "PMI_LOCAL_RANK": rank % each, "PALS_RANKID": rank}
        ranks.append(subprocess.Popen(words, env={**os.environ, **extra, **{k: str(v) for k, v in place.items()}}))
    signal.signal(signal.SIGTERM, lambda *_: None)  # the job's whole session gets it, the ranks among it
    while any(rank.poll() is None for rank in ranks):
        if any(rank.poll() not in (None, 0) for rank in ranks):
            deadline = time.monotonic() + 5
            while time.monotonic() < deadline and any(rank.poll() is None for rank in ranks):
                time.sleep(0.02)
            for process in ranks:
                process.kill()
        time.sleep(0.02)
    code = next((code if code > 0 else 128 - code for code in (rank.wait() for rank in ranks) if code), 0)
    # The scheduler's file of nodes lies in the folder of jobs, in that of the server.
    instead: int | None = Server(Path(os.environ["PBS_NODEFILE"]).parents[1]).behavior()["mpiexec_code"]
    return code if instead is None or code == 0 else instead


def end_all(server: Server) -> None:
    """Kill what still runs."""
    for job in server.jobs():
        if "session" in job:
            _signal_session(job["session"], signal.SIGKILL)


def _start_runner(server: Server, job: dict[str, Any]) -> None:
    subprocess.Popen(
        [sys.executable, __file__, "run", str(job["number"])],
        env={"PBS_STANDIN": str(server.folder), "PATH": os.environ["PATH"]},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _start(server: Server, job: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start a job's script, with nothing of the submitting shell's environment."""
    nodes = int(job["asked"]["select"].partition(":")[0])
    node_file = server.folder / "jobs" / f"{job['number']}.nodes"
    node_file.write_text("localhost\n" * nodes)
    home = server.folder / "home"
    home.mkdir(exist_ok=True)
    environment = {
        "PATH": f"{Path(__file__).parent / 'bin'}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(home),
        "USER": "user",
        "LANG": "C.UTF-8",
        "PBS_ENVIRONMENT": "PBS_BATCH",
        "PBS_JOBID": f"{job['number']}.standin",
        "PBS_NODEFILE": str(node_file),
        "PBS_O_WORKDIR": job["where"],
        "TMPDIR": f"/var/tmp/pbs.{job['number']}.standin",
        **job["variables"],
    }
    with Path(job["output"]).open("ab") as output:
        return subprocess.Popen(
            ["/bin/bash", str(server.folder / "jobs" / f"{job['number']}.script")],
            cwd=home,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _end_session(process: subprocess.Popen[bytes], grace: float) -> None:
    """End all processes of a job as PBS does: SIGTERM, and after a while SIGKILL."""
    if grace:
        _signal_session(process.pid, signal.SIGTERM)
    deadline = time.monotonic() + grace
    while time.monotonic() < deadline and _session(process.pid):
        process.poll()
        time.sleep(0.02)
    _signal_session(process.pid, signal.SIGKILL)
    process.wait()


def _signal_session(session: int, number: signal.Signals) -> None:
    for pid in _session(session):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _session(session: int) -> list[int]:
    """Return the living processes of a session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, its_session = stat.read_text().rpartition(")")[2].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(its_session) == session and state != "Z":
            found.append(int(stat.parent.name))
    return found


def _clock(seconds: int) -> str:
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def _say(message: str, code: int) -> int:
    print(message, file=sys.stderr)
    return code


def main() -> int:
    command, arguments = sys.argv[1], sys.argv[2:]
    if command == "mpiexec":
        return mpiexec(arguments)
    server = Server(Path(os.environ["PBS_STANDIN"]))
    if command == "run":
        run(server, arguments[0])
        return 0
    server.called(command, arguments)
    return {"qsub": qsub, "qstat": qstat, "qdel": qdel, "qselect": qselect}[command](server, arguments)


if __name__ == "__main__":
    sys.exit(main())
