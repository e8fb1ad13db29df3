"""Part 2: what `paceline gpus` reads, as root and as an unprivileged user, idle and at work, against NVML without Paceline and nvidia-smi."""

import json
import os
import shutil
import subprocess
import time

import machine
import nvml
from checks import ON_VIRTUAL

UNPRIVILEGED_UID = 65534
LOAD_S, LOADED_S = 14, 5  # seconds of work; of these until it is looked at
SMI = "temperature.gpu,temperature.gpu.tlimit,power.draw.instant,clocks.sm,power.limit,memory.total,pcie.link.gen.current,pcie.link.width.current"
# Signal, place in nvidia-smi's answer, unit of ours in its own, and how far apart two looks at it may be.
COMPARED = [
    ("temperature_c", 0, 1, 4),
    ("margin_c", 1, 1, 4),
    ("power_instant_w", 2, 1, 60),
    ("sm_clock_mhz", 3, 1, 60),
    ("power_limit_w", 4, 1, 1),
    ("memory_total_bytes", 5, 1 << 20, 1 << 20),
    ("pcie_gen", 6, 1, 0),
    ("pcie_width", 7, 1, 0),
]
# What root alone is said to read.
PRIVILEGED = {"sram_threshold_exceeded"}
# Beside products of matrices; all but the first are GPM's.
AT_WORK = {"utilization_ratio": 0.8, "sm_active_ratio": 0.8, "tensor_active_ratio": 0.3}
WORK = "import time, torch\na = torch.randn(8192, 8192, device='cuda', dtype=torch.bfloat16)\nend = time.monotonic() + %d\n"
WORK += "while time.monotonic() < end:\n    for _ in range(20): a @ a\n    torch.cuda.synchronize()\n"


def part(run, checks):
    if run.virtual and not run.nvml_lib:
        return checks.unseen("A3 A4 A9 B", "readings of a GPU", "", ON_VIRTUAL + ": no NVML")
    library = nvml.Library(run.nvml_lib)
    before = throttles(library)
    idle = gpus(run)
    links(checks, library, idle)
    throttled(checks, library, before, idle)
    ecc(checks, library, idle)
    margin(checks, library, idle)
    cost(checks, idle)
    if run.virtual:
        return None
    as_unprivileged(run, checks, idle)
    beside_smi(checks, idle, "idle")
    work = subprocess.Popen([run.python, "-c", WORK % LOAD_S], env=run.environment())
    time.sleep(LOADED_S)
    loaded = gpus(run)
    beside_smi(checks, loaded, "at work")
    at_work(checks, library, loaded)
    work.wait()
    return None


def gpus(run, command=None, user=None):
    """The first GPU of `paceline gpus --json`."""
    words = [command or run.paceline, "gpus", "--json"] + (["--nvml-lib", run.nvml_lib] if run.nvml_lib else [])
    done = subprocess.run(words, stdout=subprocess.PIPE, env=run.environment(), user=user, check=False)
    print(done.stdout.decode(), flush=True)
    found = json.loads(done.stdout)
    if not found["gpus"]:
        raise SystemExit("paceline gpus: %(access)s: %(text)s" % found)
    return found["gpus"][0]


def links(checks, library, gpu):
    states = library.links()
    raw = [library.field(165, link) for link in range(len(states))]
    print("NVLink states", states, "field 165", raw)
    count = library.field(nvml.LINK_COUNT)
    checks.equal("A3", "NVLinks of the GPU", float(count[1]) if isinstance(count, tuple) else "unsupported", gpu["signals"].get("nvlink_count"))
    up = sum(isinstance(one, tuple) and one[1] in (1, 2) for one in raw)
    # Where no link has a state there is none to count.
    expected = float(up) if any(isinstance(one, tuple) for one in raw) else "unsupported"
    checks.equal("A9", "NVLinks that are up or asleep: %s" % kinds(raw), expected, gpu["signals"].get("nvlink_up"))
    checks.equal("A9", "NVLinks that are up, by the older function", sum(states), sum(isinstance(o, tuple) and o[1] == 1 for o in raw))


def kinds(raw):
    values = [nvml.NAMES.get(one[1], str(one[1])) if isinstance(one, tuple) else one for one in raw]
    return ", ".join("%d %s" % (values.count(value), value) for value in sorted(set(values))) or "none"


def throttles(library):
    return {signal: library.field(number) for signal, number in nvml.THROTTLE.items()}


def throttled(checks, library, before, gpu):
    """A counter of ours lies between two looks at it."""
    driver = library.driver()
    if tuple(int(part) for part in driver.split(".")[:2]) < (580, 82):
        return checks.unseen("A4", "throttle counters", "fields 269 to 271", "driver %s has other numbers" % driver)
    after = throttles(library)
    for signal in nvml.THROTTLE:
        low, high, ours = before[signal], after[signal], gpu["signals"].get(signal)
        if isinstance(low, str) or isinstance(high, str):
            checks.equal("A4", signal, "unsupported", ours)
        else:
            is_between = isinstance(ours, float) and low[1] <= ours <= high[1]
            checks.add("A4", signal, "%d to %d" % (low[1], high[1]), ours, is_between)
    return None


def ecc(checks, library, gpu):
    """Its mode may come with type 0, a double, though it is a whole number (NVML's bug 2032468)."""
    found = library.field(nvml.ECC_CURRENT)
    if isinstance(found, str):
        return checks.equal("B", "ECC is on: no field, %s" % found, "unsupported", gpu["signals"].get("ecc_enabled"))
    kind, _, whole = found
    return checks.equal("B", "ECC is on, value type %d" % kind, float(whole & 0xFFFFFFFF), gpu["signals"].get("ecc_enabled"))


def margin(checks, library, gpu):
    print("margins, fields 193 to 196:", [library.field(nvml.MARGIN + index) for index in range(4)])
    ours = gpu["signals"].get("margin_c")
    checks.add("B", "margin to the point where it slows down", "0 to 100 C", ours, isinstance(ours, float) and 0 <= ours <= 100)


def cost(checks, gpu):
    checks.at_most("B", "all calls of one look", 100, sum(gpu["calls_us"].values()) / 1e3, " ms")
    slowest = sorted(gpu["calls_us"], key=gpu["calls_us"].get)[-3:]
    result = ", ".join("%s %d µs" % (name[4:], gpu["calls_us"][name]) for name in reversed(slowest))
    checks.note("B", "slowest calls", result)


def as_unprivileged(run, checks, as_root):
    if os.geteuid():
        return checks.unseen("B", "what an unprivileged user reads", "", "not run as root")
    os.chmod(run.scratch, 0o711)
    program = shutil.copy(run.paceline, run.scratch / "paceline")
    os.chmod(program, 0o755)
    try:
        found = gpus(run, program, UNPRIVILEGED_UID)
    except (OSError, ValueError, SystemExit) as error:
        return checks.add("B", "readings as an unprivileged user", "as root", str(error), False)
    missing = {name for name, value in as_root["signals"].items() if isinstance(value, float) and not isinstance(found["signals"].get(name), float)}
    names = ", ".join(sorted(missing)) or "nothing"
    return checks.add("B", "what root reads and an unprivileged user does not", "at most " + ", ".join(PRIVILEGED), names, missing <= PRIVILEGED)


def beside_smi(checks, gpu, when):
    answer = machine.said([machine.nvidia_smi(), "--query-gpu=" + SMI, "--format=csv,noheader,nounits"])
    values = [value.strip() for value in answer.partition("\n")[0].split(",")]
    if len(values) != SMI.count(",") + 1:
        return checks.unseen("B", "readings beside nvidia-smi's, %s" % when, "a line", "nvidia-smi: %s" % (answer[:100] or "nothing"))
    for signal, place, per, apart in COMPARED:
        ours = gpu["signals"].get(signal)
        try:
            theirs = float(values[place]) * per
        except ValueError:
            checks.equal("B", "%s, %s" % (signal, when), "unsupported", ours)
            continue
        is_near = isinstance(ours, float) and abs(ours - theirs) <= apart
        checks.add("B", "%s, %s" % (signal, when), "%g ± %g" % (theirs, apart), ours, is_near)
    return None


def at_work(checks, library, gpu):
    signals = gpu["signals"]
    for name, least in AT_WORK.items():
        value = signals.get(name)
        checks.at_least("B", "%s beside products of matrices" % name, least, value if isinstance(value, float) else None)
    reasons = library.reasons()
    checks.note("A4", "clock reasons beside products of matrices", hex(reasons) if isinstance(reasons, int) else reasons)
