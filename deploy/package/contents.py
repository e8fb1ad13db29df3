#!/usr/bin/env python3
"""What is in what we hand out: `contents.py licences|sbom TARGET CRATE...`, of our crates for that target. Prints the terms under which
it may be handed on, or a list (CycloneDX 1.6) of all crates. The same bytes for the same Cargo.lock.

Where a crate leaves the choice, it is taken under the Apache licence, as ours is, whose text is then needed once.
"""

import glob
import json
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def metadata(target):
    words = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", target]
    return json.loads(subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout)


def built_in(data, roots):
    """The crates of others that end up in ours."""
    nodes = {node["id"]: node for node in data["resolve"]["nodes"]}
    packages = {package["id"]: package for package in data["packages"]}
    is_macro = {one for one, package in packages.items() if any("proc-macro" in target["kind"] for target in package["targets"])}
    queue = [package["id"] for package in data["packages"] if package["name"] in roots and not package["source"]]
    seen = set(queue)
    while queue:
        for dep in nodes[queue.pop()]["deps"]:
            if any(kind["kind"] is None for kind in dep["dep_kinds"]) and dep["pkg"] not in seen | is_macro:
                seen.add(dep["pkg"])
                queue.append(dep["pkg"])
    return sorted((packages[one] for one in seen if packages[one]["source"]), key=lambda package: (package["name"], package["version"]))


def texts(package, kinds):
    folder = os.path.dirname(package["manifest_path"])
    for path in sorted(glob.glob(os.path.join(folder, "*"))):
        if os.path.isfile(path) and os.path.basename(path).upper().startswith(kinds):
            with open(path, encoding="utf-8") as file:
                yield file.read().strip()


def licences(crates):
    print("Paceline: Apache-2.0, the text at the end.\n\nIn it, beside Rust's standard library (Apache-2.0 OR MIT):\n")
    said = {}
    for package in crates:
        print(f"  {package['name']} {package['version']}: {package['license']}")
        is_apache = "Apache-2.0" in package["license"].replace("/", " OR ").split(" OR ")
        found = list(texts(package, ("NOTICE",) if is_apache else ("LICENSE", "LICENCE", "COPYING", "UNLICENSE", "NOTICE")))
        if not found and not is_apache:
            sys.exit(f"{package['name']} {package['version']} is {package['license']}, and has no text of it")
        for text in found:
            said.setdefault(" ".join(text.split()), (text, []))[1].append(package["name"])
    for text, names in said.values():
        print(f"\n{'-' * 80}\n{', '.join(names)}\n\n{text}")
    with open(os.path.join(ROOT, "LICENSE"), encoding="utf-8") as file:
        print(f"\n{'-' * 80}\nPaceline, and all under the Apache licence\n\n{file.read().strip()}")


def sbom(crates, data, roots):
    def component(package):
        purl = f"pkg:cargo/{package['name']}@{package['version']}"
        return {"type": "library", "bom-ref": purl, "purl": purl, "name": package["name"], "version": package["version"],
                "licenses": [{"expression": package["license"].replace("/", " OR ")}]}

    ours = next(package for package in data["packages"] if package["name"] == roots[0])
    about = {"type": "application", "name": "paceline", "version": ours["version"], "licenses": [{"expression": ours["license"]}]}
    bom = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "metadata": {"component": about},
           "components": [component(package) for package in crates]}
    print(json.dumps(bom, indent=1))


def main():
    what, target, *roots = sys.argv[1:]
    data = metadata(target)
    crates = built_in(data, roots)
    if what == "sbom":
        sbom(crates, data, roots)
    else:
        licences(crates)


main()
