"""The fields that training operators accept, strictly: a field that their newest release does not have is rejected by
an API server with validation (kubectl requests it), and dropped silently otherwise.

Kubeflow's trainer and JobSet: models generated from its API, which Kubeflow publishes on PyPI (kubeflow-trainer-api).
The others publish nothing that can be installed, so their fields are listed here as far as the examples use them, from
the API types of each: kubeflow/training-operator 1.9 (pkg/apis/kubeflow.org/v1), kubernetes-sigs/lws 024af084
(api/leaderworkerset/v1), volcano-sh/apis 032c8b66 (pkg/apis/batch/v1alpha1), ray-project/kuberay
(ray-operator/apis/ray/v1: rayjob 0057210e, raycluster 026f1433)."""

import typing

from kubeflow_trainer_api import models
from pydantic import BaseModel

ANY = None  # any value, because pods and claims are Kubernetes' own and are validated as such
REPLICA = {"replicas": int, "restartPolicy": str, "template": ANY}
RAY_GROUP = {"rayStartParams": ANY, "template": ANY}
FIELDS = {
    ("kubeflow.org/v1", "PyTorchJob"): {
        "elasticPolicy": ANY, "nprocPerNode": str, "runPolicy": ANY,
        "pytorchReplicaSpecs": {"Master": REPLICA, "Worker": REPLICA}},
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"): {
        "replicas": int, "rolloutStrategy": ANY, "startupPolicy": str, "networkConfig": {"subdomainPolicy": str},
        "leaderWorkerTemplate": {
            "leaderTemplate": ANY, "workerTemplate": ANY, "size": int, "restartPolicy": str, "volumeClaimTemplates": ANY,
            "subGroupPolicy": {"subGroupPolicyType": str, "subGroupSize": int}, "persistentVolumeClaimRetentionPolicy": ANY}},
    ("batch.volcano.sh/v1alpha1", "Job"): {
        "schedulerName": str, "minAvailable": int, "volumes": ANY, "policies": ANY, "plugins": ANY, "runningEstimate": str, "queue": str,
        "maxRetry": int, "ttlSecondsAfterFinished": int, "priorityClassName": str, "minSuccess": int, "networkTopology": ANY,
        "tasks": [{"name": str, "replicas": int, "minAvailable": int, "template": ANY, "policies": ANY, "topologyPolicy": str,
                   "maxRetry": int, "dependsOn": ANY}]},
    ("ray.io/v1", "RayJob"): {
        "entrypoint": str, "activeDeadlineSeconds": int, "backoffLimit": int, "submitterPodTemplate": ANY, "metadata": ANY,
        "clusterSelector": ANY, "submitterConfig": ANY, "managedBy": str, "deletionStrategy": ANY, "runtimeEnvYAML": str, "jobId": str,
        "submissionMode": str, "entrypointResources": str, "entrypointNumCpus": float, "entrypointNumGpus": float,
        "ttlSecondsAfterFinished": int, "shutdownAfterJobFinishes": bool, "suspend": bool,
        "rayClusterSpec": {
            "rayVersion": str, "enableInTreeAutoscaling": bool, "autoscalerOptions": ANY, "headServiceAnnotations": ANY, "suspend": bool,
            "headGroupSpec": RAY_GROUP | {"serviceType": str, "headService": ANY, "enableIngress": bool},
            "workerGroupSpecs": [RAY_GROUP | {"groupName": str, "replicas": int, "minReplicas": int, "maxReplicas": int,
                                              "numOfHosts": int, "scaleStrategy": ANY}]}},
}
MODELS = {
    ("trainer.kubeflow.org/v1alpha1", "TrainingRuntime"): models.TrainerV1alpha1TrainingRuntime,
    ("trainer.kubeflow.org/v1alpha1", "ClusterTrainingRuntime"): models.TrainerV1alpha1ClusterTrainingRuntime,
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"): models.TrainerV1alpha1TrainJob,
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): models.JobsetV1alpha2JobSet,
}


def check(one):
    """Raises if an operator's object has an unknown field or a value of a wrong type. Returns whether the object is an
    operator's."""
    key = one["apiVersion"], one["kind"]
    if key in MODELS:
        known(one, MODELS[key], one["kind"])
        return True
    if key in FIELDS:
        fields(one["spec"], FIELDS[key], f"{one['kind']}.spec")
        return True
    return False


def known(value, kind, path):
    """Looks up each key in a model, because models ignore unknown fields, and accept no numeric quantities."""
    if typing.get_origin(kind) is typing.Union:
        (kind,) = [one for one in typing.get_args(kind) if one is not type(None)]
    inner = typing.get_args(kind)
    if typing.get_origin(kind) is typing.Annotated:
        fields(value, inner[0], path)
    elif typing.get_origin(kind) is list:
        for index, item in enumerate(value):
            known(item, inner[0], f"{path}[{index}]")
    elif typing.get_origin(kind) is dict:
        for word, item in value.items():
            known(item, inner[1], f"{path}.{word}")
    elif isinstance(kind, type) and issubclass(kind, BaseModel) and isinstance(value, dict):
        names = {field.alias or name: field.annotation for name, field in kind.model_fields.items()}
        for word, item in value.items():
            assert word in names, f"{path}.{word}: {kind.__name__} has no such field: {sorted(names)}"
            known(item, names[word], f"{path}.{word}")


def fields(value, wanted, path):
    """Like `known`, with a table instead of a model."""
    if wanted is ANY:
        return
    if isinstance(wanted, list):
        for index, item in enumerate(value):
            fields(item, wanted[0], f"{path}[{index}]")
    elif isinstance(wanted, dict):
        assert isinstance(value, dict), f"{path}: {value!r} is no object"
        for word, item in value.items():
            assert word in wanted, f"{path}.{word}: there is no such field: {sorted(wanted)}"
            fields(item, wanted[word], f"{path}.{word}")
    else:
        assert wanted in (int, str, bool, float), f"{path}: {wanted}"
        kinds = (int, float) if wanted is float else (wanted,)
        assert isinstance(value, kinds) and (wanted is bool or not isinstance(value, bool)), f"{path}: {value!r} is no {wanted.__name__}"


def refuses():
    """Known mistakes must be rejected, because a check that accepts everything would miss the next change."""
    runtime = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainingRuntime", "metadata": {"name": "r"}, "spec": {
        "mlPolicy": {"numNodes": 2, "torch": {"numProcPerNode": "auto"}},
        "template": {"spec": {"replicatedJobs": []}}}}
    volcano = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "spec": {"tasks": [{"name": "a", "replica": 1}]}}
    ray = {"apiVersion": "ray.io/v1", "kind": "RayJob", "spec": {"rayClusterSpec": {"workerGroupSpecs": [{"replicas": "2"}]}}}
    for one, words in ((runtime, "torch.numProcPerNode"), (volcano, "tasks[0].replica:"), (ray, "workerGroupSpecs[0].replicas: '2'")):
        try:
            check(one)
        except AssertionError as problem:
            assert words in str(problem), problem
        else:
            raise AssertionError(f"{words} is taken")
