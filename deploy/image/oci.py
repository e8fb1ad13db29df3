#!/usr/bin/env python3
"""Writes the image without an engine, as an OCI layout: `oci.py OUT amd64=FOLDER [arm64=FOLDER]`, FOLDER with the files that
the Containerfile's last stage copies. The same bytes for the same files; `skopeo copy oci:OUT docker://...` pushes it.

The last stage says what goes where. Only its base cannot be had here: in its place is a layer with the libraries that the files
need, taken from this machine, and a user.
"""

import gzip
import hashlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tarfile

HERE = os.path.dirname(os.path.abspath(__file__))
LIBRARIES = {
    "amd64": ["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/usr/x86_64-linux-gnu/lib"],
    "arm64": ["/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/aarch64-linux-gnu/lib"],
}
# Of the libraries above; the base has them, too.
TERMS = ["/usr/share/doc/libc6/copyright", "/usr/share/doc/libgcc-s1/copyright"]
USERS = {"etc/passwd": "root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n",
         "etc/group": "root:x:0:\nnonroot:x:65532:\n"}


class Recipe:
    """The last stage of the Containerfile."""

    def __init__(self, text):
        self.files, self.labels, self.env, self.user, self.entry = {}, {}, [], None, None
        for line in text[text.rindex("\nFROM "):].replace("\\\n", " ").splitlines():
            word, _, rest = line.partition(" ")
            if word == "COPY":
                *flags, source, place = shlex.split(rest)
                mode = next(flag.split("=")[1] for flag in flags if flag.startswith("--chmod="))
                self.files[place] = (os.path.basename(source), int(mode, 8))
            elif word == "LABEL":
                (pair,) = shlex.split(rest)
                name, _, value = pair.partition("=")
                self.labels[name] = value
            elif word == "ENV":
                self.env.append(rest)
            elif word == "USER":
                self.user = rest
            elif word == "ENTRYPOINT":
                self.entry = json.loads(rest)
            elif word not in ("", "#", "FROM"):
                sys.exit(f"oci.py does not know {word}")


def read(path):
    with open(path, "rb") as file:
        return file.read()


def needed(paths, arch):
    """The libraries that files need, and theirs, and who loads them: place in the image to bytes."""
    found, queue = {}, list(paths)
    while queue:
        path = queue.pop()
        said = subprocess.run(["readelf", "--wide", "-d", "-l", path], capture_output=True, text=True, check=True).stdout
        names = re.findall(r"\(NEEDED\).*\[(.*)\]", said)
        for loader in re.findall(r"interpreter: (.*)\]", said):
            names.append(os.path.basename(loader))
            if loader not in found:
                found[loader] = read(next(filter(os.path.exists, [f"{folder}/{names[-1]}" for folder in LIBRARIES[arch]])))
        for name in names:
            # Whoever loads them looks there; the loader itself is where programs say.
            place = f"{LIBRARIES[arch][0]}/{name}"
            if place in found or name.startswith("ld-linux"):
                continue
            source = next(filter(os.path.exists, [f"{folder}/{name}" for folder in LIBRARIES[arch]]), None)
            if source is None:
                sys.exit(f"{name}, which {path} needs, is not on this machine for {arch}")
            found[place] = read(source)
            queue.append(source)
    return found


def layer(files):
    """A layer of files: place to (bytes, mode). Its compressed bytes, and the digest of what is in them."""
    folders = {"tmp": 0o1777} if "etc/passwd" in files else {}
    for place in files:
        parts = place.strip("/").split("/")[:-1]
        folders |= {"/".join(parts[:at]): 0o755 for at in range(1, len(parts) + 1)}
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, mode in sorted(folders.items()):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            tar.addfile(entry)
        for place, (data, mode) in sorted(files.items()):
            entry = tarfile.TarInfo(place.strip("/"))
            entry.mode, entry.size = mode, len(data)
            tar.addfile(entry, io.BytesIO(data))
    return gzip.compress(plain.getvalue(), compresslevel=6, mtime=0), digest(plain.getvalue())


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


class Layout:
    """The folder that is written."""

    def __init__(self, place):
        self.place = place
        os.makedirs(os.path.join(place, "blobs", "sha256"), exist_ok=True)

    def blob(self, data, kind):
        if not isinstance(data, bytes):
            data = json.dumps(data, sort_keys=True).encode()
        with open(os.path.join(self.place, "blobs", "sha256", digest(data)[7:]), "wb") as file:
            file.write(data)
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": digest(data), "size": len(data)}

    def image(self, recipe, arch, folder):
        sources = {place: os.path.join(folder, name) for place, (name, _) in recipe.files.items()}
        programs = [path for path in sources.values() if read(path).startswith(b"\x7fELF")]
        base = {place: (data, 0o755) for place, data in needed(programs, arch).items()}
        base |= {place: (read(place), 0o644) for place in TERMS}
        base |= {place: (text.encode(), 0o644) for place, text in USERS.items()}
        ours = {place: (read(sources[place]), mode) for place, (_, mode) in recipe.files.items()}
        layers = [layer(base), layer(ours)]
        config = {
            "architecture": arch, "os": "linux",
            "config": {"User": recipe.user, "Entrypoint": recipe.entry, "Env": ["PATH=/usr/bin:/bin", *recipe.env],
                       "Labels": recipe.labels, "WorkingDir": "/"},
            "rootfs": {"type": "layers", "diff_ids": [plain for _, plain in layers]},
        }
        manifest = {
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": self.blob(config, "config.v1+json"),
            "layers": [self.blob(data, "layer.v1.tar+gzip") for data, _ in layers],
        }
        return self.blob(manifest, "manifest.v1+json") | {"platform": {"architecture": arch, "os": "linux"}}

    def close(self, manifests):
        for name, value in (("index.json", {"schemaVersion": 2, "manifests": manifests}),
                            ("oci-layout", {"imageLayoutVersion": "1.0.0"})):
            with open(os.path.join(self.place, name), "w") as file:
                json.dump(value, file, sort_keys=True)


def main():
    out, *platforms = sys.argv[1:] or sys.exit(__doc__)
    recipe = Recipe(read(os.path.join(HERE, "Containerfile")).decode())
    layout = Layout(out)
    layout.close([layout.image(recipe, *platform.split("=", 1)) for platform in platforms])


main()
