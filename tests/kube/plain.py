"""An HTTP proxy in front of tests/kube-api for clients that send Kubernetes' protobuf: helm stores its releases in
Secrets in this format. Other requests are passed through unchanged.

The fields are numbered by https://github.com/kubernetes/api/blob/master/core/v1/generated.proto (Secret) and
https://github.com/kubernetes/apimachinery/blob/master/pkg/apis/meta/v1/generated.proto (ObjectMeta).
"""

import base64
import http.client
import http.server
import json
import ssl
import threading

MAGIC = b"k8s\0"
META = {1: ("name", "text"), 2: ("generateName", "text"), 3: ("namespace", "text"), 5: ("uid", "text"),
        6: ("resourceVersion", "text"), 11: ("labels", "map"), 12: ("annotations", "map")}
SECRET = {1: ("metadata", META), 2: ("data", "bytes"), 3: ("type", "text")}
OPTIONS = {4: ("propagationPolicy", "text")}
KIND = {1: ("apiVersion", "text"), 2: ("kind", "text")}
UNKNOWN = {1: ("typeMeta", KIND), 2: ("raw", "raw")}


def number(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def fields(data):
    """Returns the number and the bytes of each length-delimited field. Numeric fields are skipped."""
    at = 0
    while at < len(data):
        tag, at = number(data, at)
        if tag & 7 == 0:
            _, at = number(data, at)
        else:
            assert tag & 7 == 2, f"a field of kind {tag & 7}"
            size, at = number(data, at)
            yield tag >> 3, data[at:at + size]
            at += size


def message(data, table):
    found = {}
    for field, value in fields(data):
        name, kind = table.get(field, (None, None))
        if isinstance(kind, dict):
            found[name] = message(value, kind)
        elif kind == "text":
            found[name] = value.decode()
        elif kind == "raw":
            found[name] = value
        elif kind:
            pair = dict(fields(value))
            text = pair.get(2, b"")
            found.setdefault(name, {})[pair.get(1, b"").decode()] = (
                base64.b64encode(text).decode() if kind == "bytes" else text.decode())
    return {name: value for name, value in found.items() if value not in ("", {})}


def as_json(body):
    """Converts a protobuf Secret, or DeleteOptions, to JSON."""
    assert body.startswith(MAGIC)
    whole = message(body[len(MAGIC):], UNKNOWN)
    table = {"Secret": SECRET, "DeleteOptions": OPTIONS}[whole["typeMeta"]["kind"]]
    return json.dumps(whole["typeMeta"] | message(whole.get("raw", b""), table)).encode()


def serve(address, authority, token):
    """Starts the proxy in front of HOST:PORT and returns its address. HTTP clients send no token, so all use this
    one."""
    context = ssl.create_default_context(cadata=authority)

    class Visit(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def forward(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "content-length")}
            headers["Authorization"] = f"Bearer {token}"
            if "protobuf" in (self.headers.get("Content-Type") or ""):
                body = as_json(body)
                headers["Content-Type"] = "application/json"
            link = http.client.HTTPSConnection(address, context=context, timeout=120)
            link.request(self.command, self.path, body or None, headers)
            answer = link.getresponse()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                    self.send_header(name, value)
            self.end_headers()
            # Passes data through as it arrives, for watches. The end of the connection ends the response.
            while piece := answer.read1(65536):
                self.wfile.write(piece)
            link.close()

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = forward

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Visit)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"
