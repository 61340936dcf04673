"""The Polaris profile: its real scripts, run with stand-ins for PBS Pro, and its estimates before submission."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tests.support import experiments, records
from tests.support.pbs.cluster import PROFILE, ROOT, Cluster
from tests.support.pbs.standin import LIMIT
from workflow.bench.plan import Plan, rank_shares
from workflow.bench.support.config import ConfigError, schema
from workflow.bench.training.record import RunFolder, sealed
from workflow.bench.training.stop_signals import EXIT_RESUMABLE
from workflow.cluster import preflight, settings

LEDGER = Path(".snakemake/cluster")
LAUNCH = f"{PROFILE}/launch --nodes 2 --ranks 8 --cores 32 --minutes 60 --margin 12"
NO_ACCOUNT = "MKOR_ACCOUNT is not set: export MKOR_ACCOUNT=<the allocation that the jobs are charged to>\n"
PUBLISH = "mkdir -p results/it && echo done > results/it/label.csv"


@pytest.fixture
def cluster(tmp_path):
    made = Cluster.make(tmp_path)
    yield made
    made.close()


FOLDER = f"results/runs/{records.A_RUN.id}"


def a_run(steps: int) -> str:
    """Return a command that writes the record of a run that was interrupted after ``steps``."""
    record = json.dumps(sealed(records.summary(records.A_RUN, "interrupted", steps=steps)))
    return f"mkdir -p {FOLDER} && printf %s {shlex.quote(record)} > {FOLDER}/run.json"


def test_a_job_gets_only_the_variables_that_are_passed_on(cluster):
    """Truth: the scheduler's own variables, the profile's, and MKOR_*; nothing of the login node's shell."""
    cluster.variables = {"MKOR_DATA": "/a b/it's", "SECRET": "1"}
    cluster.run(f"env > seen && {PUBLISH}")
    seen = cluster.seen()
    assert seen["MKOR_DATA"] == "/a b/it's"
    assert seen["TMPDIR"] == "/tmp"
    assert "SECRET" not in seen


def test_qsub_gets_the_options_that_polaris_requires(cluster):
    cluster.submit(PUBLISH)
    (given,) = cluster.server.calls("qsub")
    command = " ".join(given)
    for part in (
        "-A an-account",
        "-q debug",
        "-l select=2:system=polaris",
        "-l place=scatter",
        "-l filesystems=home:eagle",
        "-l walltime=01:00:00",
        "-r y",
    ):
        assert part in command
    assert Path(given[given.index("-o") + 1]).parent.is_dir(), "a missing folder for -o holds a job for ever"


def test_a_job_that_waits_is_running_to_snakemake(cluster):
    cluster.server.behave(start_seconds=3.0)
    chain = cluster.submit(PUBLISH)
    assert cluster.status(chain) == ("running", "")
    assert cluster.server.job("1")["state"] == "Q"
    assert cluster.end(chain)[0] == "success"


def test_the_history_has_the_exit_code_of_a_job_that_wrote_none(cluster):
    chain = cluster.submit(PUBLISH)
    cluster.wait("F")
    (cluster.folder / LEDGER / chain / "1.exit").unlink()
    assert cluster.end(chain)[0] == "success"
    assert cluster.server.calls("qstat")[-1][:2] == ["-x", "-f"]


def test_a_failed_job_is_reported_with_its_exit_code_and_log(cluster):
    chain = cluster.submit("echo what went wrong >&2; exit 3")
    word, messages = cluster.end(chain)
    assert word == "failed"
    assert "exit code 3" in messages
    log = cluster.folder / messages.split("see ")[1].strip()
    assert "what went wrong" in log.read_text()
    assert cluster.status(chain) == ("failed", ""), "reported once"


def test_a_slice_that_saved_its_work_is_followed_by_the_next(cluster):
    """Snakemake hides the exit code of its command, so the launch script leaves a file."""
    slices = f'case $MKOR_SLICE in 3) {PUBLISH} ;; *) touch "$MKOR_SAVED"; exit 1 ;; esac'
    advance = f"case $MKOR_SLICE in 1) {a_run(1)} ;; 2) {a_run(2)} ;; *) {a_run(3)} ;; esac"
    messages = cluster.run(f"{advance} && {{ {slices}; }}")
    assert [job["exit_status"] for job in cluster.server.jobs()] == [EXIT_RESUMABLE, EXIT_RESUMABLE, 0]
    assert messages.count("saved its work") == 2
    names = [call[call.index("-N") + 1] for call in cluster.server.calls("qsub")]
    assert len(set(names)) == 3


def test_a_chain_without_progress_fails(cluster):
    messages = cluster.run(f'{a_run(7)}; touch "$MKOR_SAVED"; exit 1', "failed")
    assert "2 slices in a row made no progress" in messages
    assert len(cluster.server.jobs()) == 3, "the first brought 7 steps"


def test_a_job_that_saves_its_work_at_its_time_limit_is_followed_by_the_next(cluster):
    """All processes of the job get SIGTERM; those between the scheduler and the ranks wait for the ranks."""
    cluster.server.behave(minute_seconds=0.05, grace_seconds=10)  # 3 s, in which eight ranks must start
    (cluster.folder / "train").write_text("trap 'sleep 0.3; . ./save; exit 75' TERM; sleep 20 & wait\n")
    (cluster.folder / "save").write_text(a_run(5))
    chain = cluster.submit(f"if [ $MKOR_SLICE = 1 ]; then {LAUNCH} sh train; else {PUBLISH}; fi")
    word, messages = cluster.end(chain)
    assert word == "success", messages
    assert (cluster.folder / LEDGER / chain / "1.exit").read_text() == f"{EXIT_RESUMABLE}\n"


@pytest.mark.parametrize("kill_status", [-29, 271])
def test_a_job_killed_at_its_time_limit_is_followed_by_the_next(cluster, kill_status):
    """The job survives SIGTERM until SIGKILL, and leaves a newer checkpoint."""
    cluster.server.behave(minute_seconds=0.02, grace_seconds=0.3, kill_status=kill_status)
    first = f"trap '' TERM && mkdir -p {FOLDER} && echo 1 > {FOLDER}/checkpoint.pt && sleep 20"
    cluster.run(f"if [ $MKOR_SLICE = 1 ]; then {first}; else {PUBLISH}; fi")
    assert [job["exit_status"] for job in cluster.server.jobs()] == [kill_status, 0]


@pytest.mark.parametrize("does", ["sleep 20", "trap 'touch \"$MKOR_SAVED\"; exit 1' TERM; sleep 20 & wait"])
def test_a_job_killed_for_another_reason_has_failed(cluster, does):
    """A user who calls qdel wants no next slice, whether the job saved its work or not."""
    chain = cluster.submit(f"touch begun && {does}")
    deadline = time.monotonic() + 20
    while not (cluster.folder / "begun").exists():
        assert time.monotonic() < deadline, "it did not begin"
        time.sleep(0.02)
    cluster.server.behave(grace_seconds=1)
    subprocess.run(["qdel", "1.standin"], env=cluster.environment, check=True)
    word, messages = cluster.end(chain)
    assert word == "failed"
    assert "was killed, but not for its time limit" in messages
    assert len(cluster.server.jobs()) == 1


def test_a_held_job_is_deleted_and_has_failed(cluster):
    cluster.server.behave(hold=[1])
    chain = cluster.submit(PUBLISH)
    word, messages = cluster.status(chain)
    assert word == "failed"
    assert "too many failed attempts" in messages
    assert cluster.server.calls("qdel") == [["1.standin"]]


def test_a_vanished_job_has_failed_after_several_misses(cluster):
    chain = cluster.submit("sleep 20")
    cluster.wait("R")
    cluster.server.behave(vanish=[1])
    deadline = time.monotonic() + 10
    while cluster.server.job("1") and time.monotonic() < deadline:
        time.sleep(0.05)
    words = [cluster.status(chain) for _ in range(5)]
    assert [word for word, _ in words] == ["running"] * 4 + ["failed"]
    assert "1.standin has vanished" in words[-1][1]


@pytest.mark.parametrize(
    ("behavior", "tries"),
    [
        ({"refuse": [[LIMIT, 38], [LIMIT, 38]]}, 3),
        ({"refuse": [["qsub: cannot connect to server standin (errno=111)", 111]]}, 2),
        ({"refuse": [["a hiccup", 1]] * 4}, 5),
        ({"lose_answer": [1]}, 1),
        ({"silent": 12, "start_seconds": 0.5}, 1),
        ({"forget": True}, 1),
    ],
    ids=["limit", "away", "unknown", "lost answer", "silent", "short memory"],
)
def test_a_server_s_mood_changes_nothing(cluster, behavior, tries):
    """A refused submission is tried again, one whose answer was lost is not, and an ended job has not vanished."""
    cluster.server.behave(**behavior)
    cluster.run(PUBLISH)
    assert len(cluster.server.calls("qsub")) == tries
    assert len(cluster.server.jobs()) <= 1


def test_more_jobs_than_the_queue_takes_wait_their_turn(cluster):
    cluster.server.behave(live_jobs=1)
    made = [
        cluster.submit(f"mkdir -p results/it && echo {i} > results/it/{i}.csv", f"results/it/{i}.csv") for i in "abc"
    ]
    assert [cluster.end(chain)[0] for chain in made] == ["success"] * 3
    assert len(cluster.server.jobs()) == 3


def test_a_permanent_refusal_fails_at_once_with_the_schedulers_message(cluster):
    cluster.server.behave(refuse=[["qsub: Unknown queue", 170]])
    called = cluster.call("submit", str(cluster.job_script(PUBLISH)))
    assert called.returncode == 1
    assert "Unknown queue" in called.stderr
    assert called.stderr.count("\n") == 1
    assert called.stdout == ""


def test_without_an_account_nothing_is_submitted_and_one_line_names_the_variable(cluster):
    cluster.account = ""
    called = cluster.call("submit", str(cluster.job_script(PUBLISH)))
    assert called.returncode == 1
    assert called.stderr == NO_ACCOUNT
    assert cluster.server.calls("qsub") == []


def test_a_coordinator_that_was_killed_finds_its_job_again(cluster):
    """The ledger is keyed by the outputs: the second submission returns the first one's chain."""
    chain = cluster.submit(f"sleep 0.5 && {PUBLISH}")
    assert cluster.submit(f"sleep 0.5 && {PUBLISH}") == chain
    other = cluster.submit("true", "results/it/other.csv")
    assert other != chain
    assert cluster.end(chain)[0] == "success"
    assert len(cluster.server.jobs()) == 2


def test_a_slice_that_ended_without_a_coordinator_is_followed_by_the_next(cluster):
    slices = f'if [ $MKOR_SLICE = 1 ]; then {a_run(5)}; touch "$MKOR_SAVED"; exit 1; else {PUBLISH}; fi'
    chain = cluster.submit(slices)
    cluster.wait("F")
    assert cluster.submit(slices) == chain
    assert cluster.end(chain)[0] == "success"
    assert len(cluster.server.jobs()) == 2


def test_a_failed_job_is_submitted_again_under_a_new_name(cluster):
    chain = cluster.submit("exit 3")
    assert cluster.end(chain)[0] == "failed"
    assert cluster.submit(PUBLISH) == chain
    assert cluster.end(chain)[0] == "success"
    names = [job["name"] for job in cluster.server.jobs()]
    assert len(set(names)) == 2


def test_cancel_returns_at_once_and_deletes_the_job(cluster):
    chain = cluster.submit("sleep 30")
    cluster.wait("R")
    cluster.server.behave(grace_seconds=0.1)
    called = cluster.call("cancel", chain)
    assert called.returncode == 0
    assert cluster.status(chain) == ("failed", f"{chain}: it was cancelled; see {LEDGER / chain / '1.log'}\n")
    assert cluster.wait("F")["exit_status"] == 271
    assert cluster.submit(PUBLISH) == chain, "called again, Snakemake begins it anew"
    assert cluster.end(chain)[0] == "success"


@pytest.mark.parametrize("damage", ["{", "[]", '{"id": 1}'])
def test_a_damaged_ledger_fails_the_job_and_not_the_workflow(cluster, damage):
    chain = cluster.submit(PUBLISH)
    cluster.wait("F")
    (cluster.folder / LEDGER / chain / "chain.json").write_text(damage)
    word, messages = cluster.status(chain)
    assert word == "failed"
    assert "chain.json is missing or damaged" in messages
    assert cluster.status("no-such-chain")[0] == "failed"


def test_a_failing_status_script_prints_running(cluster):
    """Any other word, or a nonzero exit code, would end the whole workflow and leave its jobs behind."""
    chain = cluster.submit(PUBLISH)
    cluster.wait("F")
    lock = cluster.folder / LEDGER / chain / "lock"
    lock.unlink()
    lock.mkdir()
    word, messages = cluster.status(chain)
    assert word == "running"
    assert f"{chain}: its state cannot be read now" in messages
    lock.rmdir()
    cluster.variables = {"PYTHONHOME": "/nowhere"}
    assert cluster.status(chain)[0] == "running"
    cluster.variables = {}
    assert cluster.status(chain)[0] == "success"


@pytest.mark.parametrize(
    ("module", "without"),
    [
        *(
            (f"workflow.cluster.{name}", ("torch", "yaml", "jsonschema", "numpy"))
            for name in ("submit", "status", "cancel")
        ),
        ("workflow.cluster.preflight", ("torch",)),
    ],
)
def test_modules_for_login_nodes_import_little(module, without):
    """They are called for every job in every minute, on nodes with few threads and little memory."""
    code = f"import sys, {module}; sys.exit([name for name in {without} if name in sys.modules] or 0)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_launch_script_gives_every_rank_its_place_and_a_gpu(cluster):
    """Truth: one rank per GPU, with the GPUs numbered in the opposite order of the cores."""
    tell = "echo $RANK $WORLD_SIZE $LOCAL_RANK $CUDA_VISIBLE_DEVICES $OMP_NUM_THREADS $MASTER_ADDR $@ >> seen"
    cluster.run(f"{LAUNCH} sh -c '{tell}' tell --option && {PUBLISH}")
    seen = sorted(line.split() for line in (cluster.folder / "seen").read_text().splitlines())
    assert [line[:6] for line in seen] == [
        [str(rank), "8", "0", str(3 - rank % 4), "8", "localhost"] for rank in range(8)
    ]
    assert {tuple(line[6:8]) for line in seen} == {("--option", "--minutes")}
    (minutes,) = {float(line[8]) for line in seen}
    assert 47 < minutes <= 48, "what is left of 60, less the margin of 12"


@pytest.mark.parametrize("code", [1, 0, 143, None])
def test_saved_work_is_resumed_whatever_mpiexec_makes_of_the_exit_code(cluster, code):
    """Rank 0 leaves a file; without it, the same code is a failure. None: mpiexec passes 75 on, and nothing is left."""
    cluster.server.behave(mpiexec_code=code)
    saved = "exit $((RANK ? 0 : 75))" if code is None else "[ $RANK -gt 0 ] || { touch $MKOR_SAVED; exit 75; }"
    saves = f"{LAUNCH} sh -c '{saved}'"
    fails = f"{LAUNCH} false" if code is None else f"{LAUNCH} sh -c 'exit 75'"
    job = f"{a_run(5)}; if [ $MKOR_SLICE = 1 ]; then {saves}; else {fails} && {PUBLISH}; fi"
    cluster.run(job, "success" if code == 0 else "failed")
    assert [job["exit_status"] for job in cluster.server.jobs()] == [EXIT_RESUMABLE, 1 if code is None else code]


def test_nccl_s_network_plugin_can_be_switched_off(cluster):
    """Ranks that hang with the plugin, as some programs do on Polaris, end without it: modules may have chosen it."""
    set_by_modules = "export NCCL_NET='AWS Libfabric' NCCL_NET_GDR_LEVEL=PHB NCCL_CROSS_NIC=1 NCCL_COLLNET_ENABLE=1"
    cluster.variables = {"MKOR_NCCL_PLUGIN": "off"}
    hangs = "if [ \"$NCCL_NET\" = 'AWS Libfabric' ]; then sleep 60; fi"
    (cluster.folder / "rank").write_text(f"{hangs}\nenv > seen.$RANK\n")
    cluster.run(f"{set_by_modules}; {LAUNCH} sh rank && {PUBLISH}")
    assert {name: value for name, value in cluster.seen("seen.7").items() if name.startswith("NCCL_")} == {
        "NCCL_NET": "Socket",
        "NCCL_NET_PLUGIN": "none",
    }


@pytest.mark.parametrize(
    ("variable", "told", "seen"),
    [
        ("MKOR_NCCL_PLUGIN", "$NCCL_NET $LD_LIBRARY_PATH", "AWS Libfabric /soft/libraries/hwloc/lib:{0}:"),
        ("MKOR_SOCKET_IFNAME", "$GLOO_SOCKET_IFNAME $NCCL_SOCKET_IFNAME", "{0} {0}"),
    ],
)
def test_nccl_s_network_can_be_chosen(cluster, tmp_path, variable, told, seen):
    """Its plugin, if it is there, and the interface, gloo's as well."""
    cluster.variables = {variable: str(tmp_path)}
    cluster.run(f"{LAUNCH} sh -c 'echo {told} >> seen' && {PUBLISH}")
    assert (cluster.folder / "seen").read_text().splitlines() == [seen.format(tmp_path)] * 8


@pytest.mark.parametrize("is_writable", [True, False])
def test_data_is_read_from_the_nodes_disks_if_it_could_be_copied(cluster, is_writable):
    data, ssd = cluster.folder / "data", cluster.folder / "ssd"
    for name in ("big", "small"):
        (data / name).mkdir(parents=True)
        (data / name / "file").write_text(name)
    if is_writable:
        ssd.mkdir()
    else:
        ssd.write_text("a file, where a folder was to be")
    cluster.variables = {"MKOR_DATA": str(data), "MKOR_NODE_SSD": str(ssd)}
    chain = cluster.submit(f"{LAUNCH} --stage big sh -c 'cat $MKOR_DATA/*/file; echo; echo $MKOR_DATA' && {PUBLISH}")
    word = cluster.end(chain)[0]
    log = (cluster.folder / LEDGER / chain / "1.log").read_text()
    assert word == "success", log
    assert "bigsmall" in log
    if is_writable:
        assert f"{ssd}/mkor-data" in log
        assert not (ssd / "mkor-data" / "big").is_symlink()
        assert (ssd / "mkor-data" / "small").is_symlink()
    else:
        assert "could not be copied" in log


def the_file(**changes):
    """Return the profile's cluster.yaml with changes of ``training.default``."""
    content = yaml.safe_load((PROFILE / "cluster.yaml").read_text())
    content["training"]["default"] |= changes
    return content


def test_data_is_staged_by_several_processes_at_once(tmp_path):
    data, target = tmp_path / "data", tmp_path / "ssd"
    for name in ("big", "small"):
        (data / name).mkdir(parents=True)
        (data / name / "file").write_text(name)
    (data / "loose").write_text("a data set of one file")
    command = [str(PROFILE / "stage"), str(target), "big", "loose"]
    at_once = [subprocess.Popen(command, env={**os.environ, "MKOR_DATA": str(data)}) for _ in range(8)]
    assert [process.wait() for process in at_once] == [0] * 8
    assert sorted(path.name for path in target.iterdir()) == ["big", "loose", "small"]
    assert (target / "small").is_symlink()
    assert (target / "big" / "file").read_text() == "big"
    # A link made over a link to a folder would lie in that folder.
    assert [path.name for path in (data / "small").iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"queue": "porduction"}, ["training.default.queue", "unknown queue"]),
        ({"queue": "prod"}, ["training.default.nodes = 1", "takes 10 to 24, 25 to 99, 100 to 496 nodes"]),
        ({"queue": "prod", "nodes": 16}, ["training.default.minutes = 360", "16 nodes run 180 minutes at most"]),
        ({"minutes": 12}, ["training.default.minutes = 12", "more than margin_minutes"]),
        ({"ranks_per_node": 33}, ["training.default.ranks_per_node = 33", "must be at most cores_per_node, 32"]),
        (
            {"nodes": 3},
            ["training.default.nodes = 3", "it/sgd: 12 ranks cannot have equal parts of a batch of 128"],
        ),
        ({"nodez": 3}, ["training.default.nodez", "did you mean 'nodes'?"]),
    ],
)
def test_a_job_that_no_queue_accepts_is_refused_in_one_line(tmp_path, changes, says):
    folder = experiments.make_folder(tmp_path / "config")
    experiments.write(folder, "it", experiments.block(experiments.optimizer("sgd")))
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump(the_file(**changes)))
    with pytest.raises(ConfigError) as refused:
        settings.Cluster.load(str(tmp_path), experiments.load(folder))
    assert "\n" not in str(refused.value)
    for words in says:
        assert words in str(refused.value)


def test_the_documentation_names_every_key_of_a_job_and_every_variable_that_the_scripts_read():
    page = (ROOT / "docs" / "clusters.md").read_text()
    keys = schema("cluster")["properties"]["training"]["additionalProperties"]["properties"]
    scripts = "".join((PROFILE / name).read_text() for name in ("jobscript", "launch"))
    own = {"MKOR_CHAIN", "MKOR_SLICE", "MKOR_STARTED"}  # set by the profile itself
    variables = {*re.findall(r"MKOR_[A-Z_]+", scripts)} - own
    assert [name for name in (*(f"`{key}`" for key in keys), *variables) if name not in page] == []


def test_the_documentation_and_the_job_script_load_the_same_version_of_the_site_s_module():
    """The virtual environment belongs to one; a module without a version is the default of that day."""
    (pinned,) = re.findall(r"MKOR_CONDA_MODULE:-(conda/\S+)\}", (PROFILE / "jobscript").read_text())
    page = (ROOT / "docs" / "clusters.md").read_text()
    assert re.findall(r"module load (\S+?);", page) == [pinned]
    assert re.fullmatch(r"conda/\d{4}-\d\d-\d\d", pinned)
    assert re.findall(r"^ *module load (.+)$", (PROFILE / "jobscript").read_text(), re.MULTILINE) == ['"$conda"']


def test_an_unknown_cluster_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"cluster = 'polaros': .*did you mean 'polaris'\?"):
        settings.Cluster.load("polaros", Plan.load(hardware="test"))


def test_the_estimate_covers_the_remaining_steps(tmp_path):
    """Truth: steps, seconds per step and slices by hand: 20 steps of 100 s, slices of 10 minutes, margins of 2."""
    folder = experiments.make_folder(tmp_path / "config")
    experiments.write(folder, "it", experiments.block(experiments.optimizer("sgd"), seeds=[0, 1]))
    content = the_file(nodes=2, minutes=12, step_seconds=100)
    content["margin_minutes"] = 2
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump(content))
    plan = experiments.load(folder)
    cluster = settings.Cluster.load(str(tmp_path), plan)
    (estimate,) = preflight.cost_estimates(plan, cluster)
    assert (estimate.runs, estimate.steps) == (2, (40,))
    assert estimate.slices == 7, "4,000 s in slices of 600 s"
    assert estimate.node_hours == pytest.approx(2 * (4000 + 7 * 120) / 3600)
    first, second = (RunFolder.of(plan.results, run.id) for run in plan.jobs[0].runs)
    records.put(first, plan.jobs[0].runs[0], "finished", steps=20)
    records.put(second, plan.jobs[0].runs[1], "interrupted", steps=15)
    (estimate,) = preflight.cost_estimates(plan, cluster)
    assert (estimate.runs, estimate.steps) == (1, (5,))


def test_the_estimate_counts_what_ranks_share(tmp_path):
    """BERT's second phase draws 1/64 of a batch in each step; ImageNet is read by all ranks, in 381 evaluations."""
    plan = Plan.load(tier="paper", hardware="test", results=str(tmp_path))
    cluster = settings.Cluster.load("polaris", plan)
    estimates = {each.experiment: each for each in preflight.cost_estimates(plan, cluster)}
    _, costs = rank_shares.measured()
    drawn, read = costs["draw", "bert_pretraining", 512], costs["evaluate", "resnet50", 224]
    bert, resnet = estimates["bert_pretraining"], estimates["resnet50_imagenet"]
    assert bert.step_seconds == pytest.approx(20 + drawn.seconds(32768, 64))
    assert resnet.step_seconds == pytest.approx(0.15 + read.seconds(50000, 64) / 7 * 381 / 234375)
    assert resnet.hours == pytest.approx(234375 * resnet.step_seconds / 3600)
    assert estimates["bert_glue"].shared_seconds == 0


def snakemake(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Call Snakemake as a user does, in the repository."""
    return subprocess.run(
        [sys.executable, "-m", "snakemake", "--cores", "all", "--profile", "polaris", *arguments],
        cwd=ROOT,
        env={**{name: value for name, value in os.environ.items() if not name.startswith("MKOR_")}, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_dry_run_prints_node_hours_and_plan_with_no_account(tmp_path):
    """The exact command of the documentation."""
    dry_run = snakemake("-n", MKOR_DATA=str(tmp_path))
    assert dry_run.returncode == 0, dry_run.stderr
    said, _, shared = dry_run.stderr.partition("seconds that ranks save")
    rows = {line.split()[0]: line.split() for line in said.splitlines() if line.startswith("  ") and line.split()}
    assert rows["bert_pretraining"][1:3] == ["prod", "16"]
    hours = [float(row[6].replace(",", "")) for name, row in rows.items() if f"{row[2]}".isdigit() and name != "all"]
    assert len(hours) == 12
    assert sum(hours) == pytest.approx(float(rows["all"][-1].replace(",", "")), abs=0.1 * len(hours))
    assert " ".join(rows["bert_pretraining"][7:]).startswith("20 the paper's Table 2")
    assert rows["bert_squad"][8:] == ["the", "model"]
    assert dry_run.stderr.count("NOT DECIDED: C01, C02, C03: ") == 1
    assert re.search(r"^  resnet50_imagenet +an evaluation: reading the images +64 +8 ", shared, re.MULTILINE)
    assert re.search(r"^  bert_pretraining +a step: drawing the batch +64 +8 .* 12,652 ", shared, re.MULTILINE)
    assert "recorded as skipped: bert_pretraining/hylo: hylo keeps the rows of all layers, 464 GB" in dry_run.stderr
    assert "\nrule refuse:\n    output: results/polaris/paper/bert_pretraining/hylo.csv\n" in dry_run.stdout
    assert "account: none yet" in dry_run.stderr
    assert f"data: weights: not in {tmp_path}; runs of bert_base_squad, bert_imdb will be skipped" in dry_run.stderr
    assert "data: python -m workflow.bench.fetch --tier paper brings what can be downloaded" in dry_run.stderr
    assert "disk: at most" in dry_run.stderr
    assert "resnet50_imagenet/mkor.csv" in dry_run.stdout
    assert "launch --nodes 16 --ranks 64 --cores 32 --minutes 180" in dry_run.stdout
    pilot = snakemake("-n", "--printshellcmds", "pilot").stdout
    assert "launch --nodes 2 --ranks 8 --cores 32 --minutes 15 --margin 2.0 python -m workflow.cluster.pilot" in pilot
    assert "minutes=15" in pilot


@pytest.fixture
def pipeline(cluster):
    """A cluster with a plan of one run of 20 steps."""
    cluster.configure(experiments.block(experiments.optimizer("sgd")))
    return cluster


TARGET = "results/test-machine/embedded/it.csv"


def call(cluster: Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = cluster.pipeline(*arguments, "--", TARGET)
    return subprocess.run(
        command, cwd=cluster.folder, env=cluster.environment, capture_output=True, text=True, check=False, timeout=300
    )


def test_without_an_account_the_pipeline_stops_with_one_line_before_it_submits(pipeline):
    pipeline.account = ""
    stopped = call(pipeline)
    assert stopped.returncode == 1
    assert stopped.stderr.endswith(f"\n{NO_ACCOUNT}")
    assert pipeline.server.jobs() == []


def test_a_restarted_pipeline_finds_the_job_of_a_killed_coordinator(pipeline):
    """kill -9 while the job waits, then the same command: one job in all, and its results."""
    pipeline.server.behave(start_seconds=10.0)  # longer than --unlock takes on a busy machine
    command = pipeline.pipeline("--", TARGET)
    first = subprocess.Popen(
        command, cwd=pipeline.folder, env=pipeline.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    pipeline.wait("Q", seconds=60)
    time.sleep(0.3)  # so that the coordinator has read the chain's id
    first.kill()
    first.wait()
    assert call(pipeline, "--unlock").returncode == 0
    done = call(pipeline)
    assert done.returncode == 0, done.stderr
    assert "submitted before" in done.stderr
    assert len(pipeline.server.jobs()) == 1
    table = experiments.rows(pipeline.folder / TARGET)
    assert {row["step"] for row in table} == {"0", "10", "20"}
