"""The trackers to which rows are written. Each uses what the program itself has loaded and started, and otherwise does
nothing. No module is imported that the program has not imported, and no run is started or ended.

`notice` is called in the trainer's thread, occasionally, and must take only microseconds. `write` is called in a thread
of ours.
"""

import sys
import time

_PREFIX = "paceline/"
_MOST_TITLE = 63  # characters of a W&B title
_LEVELS = {"critical": "ERROR", "warning": "WARN"}


class Words:
    """Detects whether the text of a row is worth writing: new findings, or changed numbers in the last row."""

    def __init__(self):
        self._keys = self._text = None

    def are_news(self, row, last):
        keys = [finding.key for finding in row.findings]
        if keys == self._keys and not (last and row.text != self._text):
            return False
        self._keys, self._text = keys, row.text
        return True


class Wandb:
    """W&B's run of this process, or the run passed by the program.

    Rows are added to the program's own (commit=False), because a separate row would count as one of its steps, and W&B
    would then reject what the program logs for the step before. Our charts have a separate step axis.
    """

    name = "wandb"

    def __init__(self, run=None):
        self._given = run
        self._known = None  # the run in which our metrics are defined
        self._told = set()  # findings with an alert
        self._words = Words()

    def _run(self):
        if self._given is not None:
            return self._given
        return getattr(sys.modules.get("wandb"), "run", None)

    def notice(self):
        return self._run() is not None

    def write(self, row, last):
        run = self._run()
        if run is None:
            return
        if run is not self._known:
            self._known, self._told, self._words = run, set(), Words()
            run.define_metric(_PREFIX + "step")
            run.define_metric(_PREFIX + "*", step_metric=_PREFIX + "step")
        data = {_PREFIX + name: number for name, number in row.numbers.items()}
        data[_PREFIX + "step"] = row.step
        if self._words.are_news(row, last):
            data[_PREFIX + "findings_text"] = row.text
        run.log(data, commit=False)
        self._tell(run, row.findings)

    def _tell(self, run, findings):
        news = [finding for finding in findings if finding.key not in self._told]
        tags = ["paceline:" + finding.kind for finding in news]
        known = tuple(run.tags or ())
        missing = [tag for tag in dict.fromkeys(tags) if tag not in known]
        if missing:
            run.tags = known + tuple(missing)
        for finding in news:
            self._told.add(finding.key)
            if finding.alerts:
                level = _LEVELS.get(finding.severity, "WARN")
                # W&B accepts a title only once in this many seconds. The time is short, because another finding of the
                # same kind on the same rank is news.
                run.alert(finding.title[:_MOST_TITLE], finding.text, level=level, wait_duration=1)


class Mlflow:
    """MLflow's run that is active in the trainer's thread, or the run whose id was passed by the program."""

    name = "mlflow"

    def __init__(self, run=None):
        self._given = run
        self._run = run  # id
        self._uri = None
        self._client = None
        self._known = None  # run and URI of the last write
        self._text = None
        self._told = set()  # kinds of findings with a tag

    def notice(self):
        mlflow = sys.modules.get("mlflow")
        if mlflow is None or not hasattr(mlflow, "active_run"):  # it is being imported
            return False
        if self._given is None:
            # Reads the run here, because active runs are per thread and our thread would see none.
            run = mlflow.active_run()
            now = None if run is None else run.info.run_id
            if now != self._run and now is not None:
                self._uri = mlflow.get_tracking_uri()
            self._run = now
        elif self._uri is None:
            self._uri = mlflow.get_tracking_uri()
        return self._run is not None

    def write(self, row, last):
        run, uri = self._run, self._uri
        if run is None or uri is None:
            return
        mlflow = sys.modules["mlflow"]
        if (run, uri) != self._known:
            self._client = mlflow.MlflowClient(tracking_uri=uri)
            self._known, self._text, self._told = (run, uri), None, set()
        from mlflow.entities import Metric, RunTag

        at = int(time.time() * 1000)
        metrics = [Metric(_PREFIX + name, number, at, row.step) for name, number in row.numbers.items()]
        # Sets one tag per kind ever found, so that runs can be searched for it.
        kinds = {finding.kind: finding.whom for finding in reversed(row.findings) if finding.kind not in self._told}
        tags = [RunTag("paceline.finding." + kind, whom) for kind, whom in kinds.items()]
        if row.text != self._text:
            tags.append(RunTag("paceline.findings", row.text))
        self._client.log_batch(run, metrics=metrics, tags=tags)
        self._text = row.text
        self._told.update(kinds)


class TensorBoard:
    """A SummaryWriter passed by the program, from torch.utils.tensorboard or tensorboardX."""

    name = "tensorboard"

    def __init__(self, writer):
        self._writer = writer
        self._words = Words()

    def notice(self):
        # A closed writer would create another file.
        return getattr(self._writer, "all_writers", self) is not None

    def write(self, row, last):
        if not self.notice():
            return
        for name, number in row.numbers.items():
            self._writer.add_scalar(_PREFIX + name, number, row.step)
        if self._words.are_news(row, last):
            # The text is indented so that it is displayed verbatim.
            self._writer.add_text(_PREFIX + "findings_text", "    " + row.text.replace("\n", "\n    "), row.step)
        if last:
            self._writer.flush()
