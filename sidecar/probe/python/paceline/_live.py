"""Fetches the aggregator's data about all ranks, in the format of its live page (docs/page.md): everything at first,
then updates. This module does not interpret the data.

A thread other than the trainer's fetches, but an answer must not hold the interpreter for long either, so its size is
limited.
"""

import http.client
import json
import os

_MOST = 32 << 20  # bytes of an answer: fifteen times that of 16,384 ranks
_MOST_SMALL = 4096  # bytes of an address or a token
_TIMEOUT = 2.0  # seconds; without updates the aggregator answers later than this, so a timeout means none


class Unreached(Exception):
    """Raised if there is no answer. Contains the reason, in words for the user."""


class Live:
    """A polling client of the live page."""

    def __init__(self):
        self._heard = None  # epoch and serial number of the last answer

    def news(self, timeout=_TIMEOUT):
        """Return updates as a dictionary, or None if there are none. Raises Unreached. `timeout` is in seconds."""
        path, headers = "/v1/live", dict(_authorization())
        if self._heard is not None:
            path, headers["Last-Event-ID"] = "/v1/live/events", "%s-%d" % self._heard
        try:
            text = _get(path, headers, timeout)
            news = _of_events(text) if self._heard is not None else json.loads(text)
        except TimeoutError:  # socket.timeout, since Python 3.10
            if self._heard is None:
                raise Unreached("the aggregator does not answer")
            return None
        except (OSError, ValueError, http.client.HTTPException) as error:
            if type(error).__name__ == "timeout" and self._heard is not None:
                return None
            raise Unreached("%s: %s" % (type(error).__name__, error))
        if news is None:
            return None
        _check(news)
        self._heard = str(news["epoch"]), int(news["serial"])
        return news


def address():
    """Return the aggregator's host and port, from PACELINE_TRACK_FROM or otherwise from the run directory. Raises
    Unreached."""
    told = os.environ.get("PACELINE_TRACK_FROM")
    if not told:
        # `paceline run` creates a link to the run directory there, and its aggregator writes the file.
        path = os.path.join(os.environ.get("PACELINE_RING_DIR", ""), "run", "metrics.addr")
        try:
            told = _small(path)
            _check_owner(path)
        except OSError:
            raise Unreached("no aggregator of this job is found from here (PACELINE_TRACK_FROM=HOST:PORT)")
    host, _, port = told.strip().rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdigit():
        raise Unreached("no address of an aggregator: %.60s" % told)
    everywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}
    return everywhere.get(host, host), int(port)


def _get(path, headers, timeout):
    host, port = address()
    # The page's check of host names is for browsers, not for this client; a trainer may use any name for the
    # aggregator.
    headers["Host"] = "localhost"
    certificates = os.environ.get("PACELINE_HTTP_CERT")
    if certificates:
        connection = http.client.HTTPSConnection(host, port, timeout=timeout, context=_tls(certificates))
    else:
        connection = http.client.HTTPConnection(host, port, timeout=timeout)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        if answer.status == 401:
            raise Unreached("the aggregator asks for a token (PACELINE_HTTP_TOKEN_FILE)")
        if answer.status != 200:
            raise Unreached("the aggregator answers with status %d" % answer.status)
        text = answer.read(_MOST + 1)
        if len(text) > _MOST:
            raise Unreached("the aggregator's answer is too long")
        return text
    finally:
        connection.close()


def _tls(certificates):
    """Return a context that trusts only the page's own certificates, whatever the host name."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(certificates)
    context.verify_flags |= 0x80000  # X509_V_FLAG_PARTIAL_CHAIN: a certificate signed by another is trusted by itself
    return context


def _authorization():
    path = os.environ.get("PACELINE_HTTP_TOKEN_FILE")
    if path:
        try:
            yield "Authorization", "Bearer " + _small(path).strip()
        except OSError as error:
            raise Unreached("the page's token: %s" % error)


def _check_owner(path):
    """Check the owner of this file, who could redirect the token anywhere. In a pod this is skipped, because the
    sidecar may be another user."""
    if os.environ.get("PACELINE_HTTP_TOKEN_FILE") and not os.environ.get("PACELINE_RING_SHARED"):
        owner = os.stat(path).st_uid
        if owner not in (0, os.geteuid()):
            raise Unreached("the token is not sent: %s belongs to another user (uid %d)" % (path, owner))


def _small(path):
    with open(path) as file:
        return file.read(_MOST_SMALL)


def _of_events(text):
    """Return the updates in server-sent events. The last event contains all of them."""
    told = [line for line in text.split(b"\n") if line.startswith(b"data: ")]
    return json.loads(told[-1][6:]) if told else None


def _check(news):
    """Check that the answer is from this job, because another process may have taken over the port."""
    if not isinstance(news, dict) or news.get("v") != 1 or "epoch" not in news:
        raise Unreached("what answers there is no aggregator of this version")
    mine, told = os.environ.get("PACELINE_JOB"), (news.get("report") or {}).get("job")
    if mine and told and mine.isprintable() and mine[:160] != told[:160]:
        raise Unreached("what answers there is the aggregator of another job, %s" % told)
