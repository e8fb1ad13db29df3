"""Runs a pod like a kubelet, as far as possible on one machine: a network namespace for the pod; for each container a
root, a mount and a PID namespace, its user, its capabilities, its variables with expanded references, and its volumes.
Commands run as in the manifest. Needs root.

Not here: images (a container's root is the host's, below a separate layer), cgroups, probes, restarts.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time

OURS = 65532  # the user of Paceline's image
PATIENCE = 120  # s, for any operation


def run(*words):
    subprocess.run(words, check=True, capture_output=True)


def children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


def expand(text, env):
    """Expands $(NAME) of known variables. Other text stays unchanged."""
    return re.sub(r"\$\(([A-Za-z_][A-Za-z0-9_]*)\)", lambda match: env.get(match[1], match[0]), text)


class Network:
    """A bridge in a separate namespace; pods are connected to it."""

    def __init__(self, name):
        self.name, self.names = name, []
        run("ip", "netns", "add", name)
        self.names.append(name)
        run("ip", "-n", name, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", name, "link", "set", "br0", "up")

    def plug(self, number):
        name, address = f"{self.name}-{number}", f"10.77.0.{number + 2}"
        run("ip", "netns", "add", name)
        self.names.append(name)
        run("ip", "-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", f"p{number}", "netns", self.name)
        run("ip", "-n", self.name, "link", "set", f"p{number}", "master", "br0", "up")
        run("ip", "-n", name, "address", "add", f"{address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            run("ip", "-n", name, "link", "set", device, "up")
        return name, address

    def remove(self):
        for name in reversed(self.names):
            subprocess.run(["ip", "netns", "delete", name], check=False)


class Pod:
    """One pod of an Indexed Job. `secrets`: name to {file: text}; `image`, `trainer`: additions to the host's files in
    Paceline's image and in the job's; `project`: maps a projected volume's source to {file: text}."""

    def __init__(self, template, job, index, place, network, hosts, secrets, image, trainer, node, project=None):
        self.project = project
        self.spec, self.index, self.place = template["spec"], index, place
        self.image, self.trainer = image, trainer
        self.netns, self.address = network.plug(index)
        self.job, self.name, self.hosts = job, f"{job}-{index}", hosts
        meta = template.get("metadata", {})
        self.fields = {
            "metadata.name": self.name,
            "metadata.namespace": meta.get("namespace", "default"),
            "spec.nodeName": node,
            "status.podIP": self.address,
            "metadata.labels['batch.kubernetes.io/job-completion-index']": str(index),
        }
        self.fields.update({f"metadata.annotations['{key}']": text for key, text in meta.get("annotations", {}).items()})
        self.mounted, self.running, self.took = [], {}, {}
        self.volumes = {volume["name"]: self.volume(volume, secrets) for volume in self.spec.get("volumes", [])}

    def secure(self, container):
        return {**self.spec.get("securityContext", {}), **container.get("securityContext", {})}

    def volume(self, volume, secrets):
        path = os.path.join(self.place, "volumes", volume["name"])
        os.makedirs(path)
        if "emptyDir" in volume:
            if volume["emptyDir"].get("medium") == "Memory":
                size = volume["emptyDir"]["sizeLimit"].replace("Mi", "m")
                run("mount", "-t", "tmpfs", "-o", f"size={size},mode=0777", "paceline-kube", path)
                self.mounted.append(path)
            os.chmod(path, 0o777)
            return path
        if "projected" in volume:
            self.fill(volume)
            return path
        secret = volume["secret"]
        if secret["secretName"] not in secrets and not secret.get("optional"):
            raise SystemExit(f"the pod would wait for the Secret {secret['secretName']}")
        self.write(path, secrets.get(secret["secretName"], {}), secret.get("defaultMode", 0o644))
        return path

    def write(self, path, files, mode):
        # Like the kubelet, uses a link to a directory, which can be swapped atomically.
        data = os.path.join(path, "..data")
        os.makedirs(data, exist_ok=True)
        for name, text in files.items():
            group = self.spec.get("securityContext", {}).get("fsGroup")
            with open(os.path.join(data, f"{name}.new"), "w") as file:
                file.write(text)
                if group is not None:
                    os.fchown(file.fileno(), -1, group)
                os.fchmod(file.fileno(), mode if group is None else mode | 0o440)
            os.replace(file.name, os.path.join(data, name))
            if not os.path.lexists(os.path.join(path, name)):
                os.symlink(f"..data/{name}", os.path.join(path, name))

    def fill(self, volume):
        for source in volume["projected"]["sources"]:
            path = os.path.join(self.place, "volumes", volume["name"])
            self.write(path, self.project(self, source), volume["projected"].get("defaultMode", 0o644))

    def refresh(self):
        """Updates projected volumes, which a kubelet does about every minute."""
        for volume in self.spec.get("volumes", []):
            if "projected" in volume:
                self.fill(volume)

    def environment(self, container):
        entries = list(container.get("env", []))
        # Sets the variable that the Job controller sets in containers without it.
        if not any(entry["name"] == "JOB_COMPLETION_INDEX" for entry in entries):
            entries.append({"name": "JOB_COMPLETION_INDEX", "value": str(self.index)})
        env = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOSTNAME": self.name}
        for entry in entries:
            if "valueFrom" in entry:
                env[entry["name"]] = self.fields[entry["valueFrom"]["fieldRef"]["fieldPath"]]
                continue
            env[entry["name"]] = expand(entry.get("value", ""), env)
        return env

    def start(self, container):
        """Starts a container and returns its parent process."""
        name, security = container["name"], self.secure(container)
        is_ours = container["image"] != "trainer"
        user = security.get("runAsUser", OURS if is_ours else 0)
        group = security.get("runAsGroup", OURS if is_ours else 0)
        if security.get("runAsNonRoot") and user == 0:
            raise SystemExit(f"{name}: a kubelet would not start root with runAsNonRoot")
        layer, root = (os.path.join(self.place, name, part) for part in ("layer", "root"))
        for path in (layer, root):
            os.makedirs(path)
        script = ["set -e", f"mount -t tmpfs -o mode=0755 paceline-kube {layer}", f"mkdir {layer}/up {layer}/work"]
        script.append(f"mount -t overlay overlay -o lowerdir=/,upperdir={layer}/up,workdir={layer}/work {root}")
        script.append(f"mount --rbind /dev {root}/dev; mount -t proc proc {root}/proc; mount --rbind /sys {root}/sys")
        script.append(f"mount -t tmpfs -o size=64m,mode=1777 shm {root}/dev/shm")
        files = dict(self.image if is_ours else self.trainer)
        files["/etc/hosts"] = os.path.join(self.place, "hosts")
        with open(files["/etc/hosts"], "w") as file:
            file.write("127.0.0.1 localhost\n" + "".join(f"{ip} {names}\n" for ip, names in self.hosts.items()))
        for inside, outside in files.items():
            make = f"mkdir -p {root}{inside}" if os.path.isdir(outside) else f"mkdir -p $(dirname {root}{inside}); touch {root}{inside}"
            script.append(f"{make}; mount --bind {outside} {root}{inside}; mount -o remount,bind,ro {root}{inside}")
        for mount in container.get("volumeMounts", []):
            inside, outside = root + mount["mountPath"], self.volumes[mount["name"]]
            script.append(f"mkdir -p {inside}; mount --bind {outside} {inside}")
            if mount.get("readOnly"):
                script.append(f"mount -o remount,bind,ro {inside}")
        if security.get("readOnlyRootFilesystem"):
            script.append(f"mount -o remount,ro {root}")
        script.append(f"hostname {self.name}")
        variables = self.environment(container)
        words = [expand(word, variables) for word in container.get("command", []) + container.get("args", [])]
        groups = f"--groups={security['fsGroup']}" if "fsGroup" in security else "--clear-groups"
        limits = ["setpriv", f"--reuid={user}", f"--regid={group}", groups]
        if not security.get("allowPrivilegeEscalation", True):
            limits.append("--no-new-privs")
        if security.get("capabilities", {}).get("drop") == ["ALL"]:
            limits += ["--bounding-set=-all", "--inh-caps=-all"]
        env = [f"{key}={value}" for key, value in variables.items()]
        inner = ["chroot", root, *limits, "env", "-i", *env, *words]
        script.append("exec " + " ".join(map(shlex.quote, inner)))
        log = open(os.path.join(self.place, f"{name}.log"), "wb")
        unshare = ["unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--propagation", "private"]
        command = ["ip", "netns", "exec", self.netns, *unshare, "sh", "-c", "\n".join(script)]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.running[name] = process
        return process

    def log(self, name):
        with open(os.path.join(self.place, f"{name}.log"), errors="replace") as file:
            return file.read()

    def begin(self):
        """Runs init containers one after the other, with sidecars beside them, then the containers."""
        for container in self.spec.get("initContainers", []):
            process = self.start(container)
            if container.get("restartPolicy") == "Always":
                continue
            if process.wait(PATIENCE) != 0:
                raise SystemExit(f"{self.name}: {container['name']} failed: {self.log(container['name'])}")
        for container in self.spec["containers"]:
            self.start(container)

    def finish(self):
        """Waits for the containers, ends the sidecars, and returns all exit codes."""
        codes = {container["name"]: self.running[container["name"]].wait(PATIENCE) for container in self.spec["containers"]}
        for container in self.spec.get("initContainers", []):
            if container.get("restartPolicy") == "Always":
                codes[container["name"]] = self.terminate(container["name"])
        return codes

    def terminate(self, name):
        process = self.running[name]
        # The container's first process is the child of unshare.
        for pid in children(process.pid):
            os.kill(pid, signal.SIGTERM)
        began = time.monotonic()
        code = process.wait(PATIENCE)
        self.took[name] = time.monotonic() - began
        print(f"{self.name}: {name} ended {self.took[name]:.1f} s after SIGTERM with code {code}")
        return code

    def stop(self):
        """Ends a pod like a kubelet: its containers, then its sidecars. Returns all exit codes."""
        codes = {container["name"]: self.terminate(container["name"]) for container in self.spec["containers"]}
        beside = [one["name"] for one in self.spec.get("initContainers", []) if one.get("restartPolicy") == "Always"]
        return codes | {name: self.terminate(name) for name in beside}

    def restart(self, name):
        """Kills a container's first process and restarts the container, like a kubelet with restartPolicy Always."""
        process = self.running[name]
        for pid in children(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.wait(PATIENCE)
        shutil.rmtree(os.path.join(self.place, name))
        self.start(next(one for one in self.spec["initContainers"] if one["name"] == name))

    def remove(self):
        for process in self.running.values():
            if process.poll() is None:
                process.kill()
                process.wait()
        for path in self.mounted:
            subprocess.run(["umount", path], check=False)

    def attached(self):
        """Returns the attached ranks and their nodes, from this pod's journal."""
        ranks, run = {}, self.volumes["paceline-run"]
        for name in os.listdir(run):
            if name.startswith("journal") and name.endswith(".ndjson"):
                with open(os.path.join(run, name)) as file:
                    frames = [json.loads(line)["frame"] for line in file if '"attach":' in line]
                ranks.update({frame["event"]["attach"]["rank"]: frame["node"] for frame in frames})
        return ranks

    def report(self):
        with open(os.path.join(self.volumes["paceline-run"], "report.json")) as file:
            return json.load(file)
