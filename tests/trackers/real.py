"""A real job of four ranks, the third of them slow, with real W&B, MLflow and TensorBoard in it, and what Paceline has written
into them when it has ended, read back from their own files.

    tests/setup/venv.sh tests/setup/trackers.txt VENV target/realenv/torch
    VENV/bin/python tests/trackers/real.py PACELINE [--keep DIRECTORY]
"""

import argparse
import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import zlib

HERE = os.path.dirname(os.path.abspath(__file__))
TRAINER = os.path.join(os.path.dirname(HERE), "trainers", "tracked.py")
STEPS, SLOW = 150, 2
LATE = 20  # steps that may not have reached the aggregator at the program's end
PATIENCE = 500  # seconds, for a busy machine


def job(paceline, folder):
    """Runs the job to a successful end. Returns whether there was a straggler verdict on the slow rank only."""
    # Without the user's settings.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "MLFLOW_"))}
    environment.update(
        HOME=folder,
        OMP_NUM_THREADS="1",
        PYTHONWARNINGS="ignore",
        PACELINE_TRACK="wandb,mlflow",
        PACELINE_TRACK_EVERY="1",
        MLFLOW_ALLOW_FILE_STORE="true",
        MLFLOW_DISABLE_TELEMETRY="true",
        WANDB_SILENT="true",
    )
    command = [paceline, "run", "--quiet", "--sim-gpus", "gpus=4", "--run-dir", os.path.join(folder, "run"), "--"]
    command += [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4", TRAINER]
    command += ["--steps", str(STEPS), "--sleep-ms", "40", "--slow-rank", str(SLOW), "--slow-pct", "60", "--out", folder]
    with open(os.path.join(folder, "said"), "wb") as out:
        process = subprocess.Popen(command, env=environment, cwd=folder, stdout=out, stderr=out, start_new_session=True)
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)
            raise
    with open(os.path.join(folder, "said"), errors="replace") as file:
        said = file.read()
    # PyTorch 2.15 with gloo sometimes aborts at exit, without Paceline too.
    if process.returncode and "terminate called without an active exception" not in said:
        sys.exit("the job ended with %d\n%s" % (process.returncode, said))
    with open(os.path.join(folder, "run", "report.json")) as file:
        report = json.load(file)
    with open(os.path.join(folder, "run", "sidecar.log")) as file:
        notes = [line for line in file if "trackers:" in line or "hook off" in line]
    assert not notes, notes
    assert (report["steps"], report["coverage"]["ranks_seen"]) == (STEPS, 4), report["coverage"]
    named = {verdict["subject"].get("rank") for verdict in report["verdicts"] if verdict["finding"] == "straggler"}
    return named == {SLOW}


def records(path):
    """The records of a .wandb file, with W&B's protocol buffers: 32 KiB blocks of checksummed pieces in LevelDB's log
    format (https://github.com/google/leveldb/blob/main/doc/log_format.md), except for the checksum, which is zlib's."""
    from wandb.proto.wandb_internal_pb2 import Record

    with open(path, "rb") as file:
        data = file.read()
    assert data[:4] == b":W&B", path
    at, whole = 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        checksum, length, kind = struct.unpack_from("<IHB", data, at)
        if left < 7 or (kind, length) == (0, 0):
            at += left
            continue
        piece = data[at + 7 : at + 7 + length]
        assert zlib.crc32(bytes([kind]) + piece) == checksum, "%s is damaged at %d" % (path, at)
        whole, at = whole + piece, at + 7 + length
        if kind in (1, 4):  # a complete record, or its last piece
            record, whole = Record.FromString(whole), b""
            yield record.WhichOneof("record_type"), record


def wandb_of(folder, rank):
    """Rows as (step, values), alerts, tags and step metrics."""
    runs = os.path.join(folder, "rank%d" % rank, "wandb")
    (run,) = [name for name in os.listdir(runs) if name.startswith("offline-run")]
    (path,) = [name for name in os.listdir(os.path.join(runs, run)) if name.endswith(".wandb")]
    rows, alerts, tags, metrics = [], [], [], {}
    for kind, record in records(os.path.join(runs, run, path)):
        if kind == "history":
            items = record.history.item
            values = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
            rows.append((record.history.step.num, values))
        elif kind == "alert":
            alerts.append(record.alert)
        elif kind == "run":
            tags = list(record.run.tags)
        elif kind == "metric":
            metrics[record.metric.name or record.metric.glob_name] = record.metric.step_metric
    return rows, alerts, tags, metrics


def ours(values):
    return {name: value for name, value in values.items() if name.startswith(("paceline/", "paceline."))}


def check_wandb(folder):
    rows, alerts, tags, metrics = wandb_of(folder, 0)
    # All of the program's own steps, and no others, with all logged values: none was rejected.
    assert [step for step, _ in rows] == list(range(STEPS)), [step for step, _ in rows]
    short = [step for step, values in rows if not {"lr", "loss"} <= set(values)]
    assert not short, "steps of which W&B refused something: %s" % short
    told = [ours(values) for _, values in rows if ours(values)]
    assert len(told) >= 2, "%d rows" % len(told)
    check_numbers(told[-1])
    assert told[-1]["paceline/step"] >= STEPS - LATE, told[-1]
    text = [values["paceline/findings_text"] for values in told if "paceline/findings_text" in values][-1]
    assert "rank %d on" % SLOW in text, text
    assert metrics == {"paceline/step": "", "paceline/*": "paceline/step"}, metrics
    stragglers = [alert for alert in alerts if "straggler" in alert.title]
    assert len(stragglers) == 1 and "rank %d on" % SLOW in stragglers[0].text, alerts
    assert len({alert.text.split(".")[0] for alert in alerts}) == len(alerts), alerts
    assert "paceline:straggler" in tags, tags
    # Every rank may have a run of its own; Paceline writes only to the first rank's.
    rows, alerts, tags, metrics = wandb_of(folder, 1)
    assert len(rows) == STEPS and not any(ours(values) for _, values in rows)
    assert not alerts and not tags and not metrics
    return len(told)


def check_mlflow(folder):
    import mlflow

    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    client = mlflow.MlflowClient(tracking_uri="file://" + os.path.join(folder, "rank0", "mlflow"))
    (run,) = client.search_runs([client.get_experiment_by_name("Default").experiment_id])
    assert run.info.status == "FINISHED", run.info.status
    check_numbers(ours(run.data.metrics))
    history = client.get_metric_history(run.info.run_id, "paceline/slowest_rank")
    assert len(history) >= 2 and history[-1].step >= STEPS - LATE and history[-1].value == SLOW, history
    assert "rank %d on" % SLOW in run.data.tags["paceline.findings"], run.data.tags
    assert run.data.tags["paceline.finding.straggler"].startswith("rank %d on" % SLOW), run.data.tags
    assert {entry.step for entry in client.get_metric_history(run.info.run_id, "loss")} == set(range(0, STEPS, 20))
    return len(history)


def check_tensorboard(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(os.path.join(folder, "rank0", "tensorboard"))
    events.Reload()
    last = {name: events.Scalars(name)[-1].value for name in events.Tags()["scalars"]}
    check_numbers(ours(last))
    assert len(events.Scalars("loss")) == STEPS
    slowest = events.Scalars("paceline/slowest_rank")
    assert len(slowest) >= 2 and slowest[-1].step >= STEPS - LATE, slowest
    text = events.Tensors("paceline/findings_text/text_summary")[-1].tensor_proto.string_val[0].decode()
    assert text.startswith("    rank %d on" % SLOW), text
    return len(slowest)


def check_numbers(last):
    """Checks the last row, which must be the same in every tracker."""
    about = {
        "goodput_ratio": (0.2, 0.999),
        "lost_gpu_hours": (1e-6, 1),
        "lost_gpu_hours_by_cause/straggler": (1e-6, 1),
        "findings": (1, 9),
        "ranks_seen": (4, 4),
        "ranks_expected": (4, 4),
        "steps_seen_ratio": (0.99, 1),
        "step_time_p50_s": (0.06, 1),
        "step_time_p99_s": (0.06, 2),
        "phase/compute_s": (0.04, 1),
        "phase/wait_s": (0.001, 1),
        "slowest_rank": (SLOW, SLOW),
        "slowest_rank_slowdown": (1.2, 7),
        "gpu/temperature_max_c": (30, 110),
        "gpu/power_total_w": (400, 4000),
    }
    for name, (least, most) in about.items():
        value = last.get("paceline/" + name)
        assert value is not None and least <= value <= most, "%s is %s, not %s to %s" % (name, value, least, most)


def check(paceline, folder):
    # On a busy machine another rank may be the slowest for a while.
    for name in ("first", "second", "third"):
        home = os.path.join(folder, name)
        os.makedirs(home)
        if job(paceline, home):
            break
        print("the job was disturbed: once more", file=sys.stderr)
    counts = check_wandb(home), check_mlflow(home), check_tensorboard(home)
    print("rows: W&B %d, MLflow %d, TensorBoard %d" % counts)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paceline")
    parser.add_argument("--keep", help="look into what was written yourself")
    options = parser.parse_args()
    paceline = os.path.abspath(options.paceline)
    if options.keep:
        return check(paceline, os.path.abspath(options.keep))
    with tempfile.TemporaryDirectory() as folder:
        check(paceline, folder)


if __name__ == "__main__":
    main()
