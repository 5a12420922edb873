"""The live page: the requests its server refuses, its content, and, in a real browser, that data is shown as text."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import socket
import subprocess
import threading
import time
from contextlib import suppress
from html import unescape
from pathlib import Path
from socketserver import ThreadingMixIn

import pytest

from windowing import InputSpout, TopologyBuilder, bolt, execution_plan, millis, tumbling
from windowing.errors import ConfigError
from windowing.execution.metrics import FiredWindow, RunMetrics, TaskMetrics
from windowing.local import LocalCluster, VirtualClock
from windowing.monitoring import ClusterMetrics, serve_page
from windowing.monitoring import page as live_page

HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>"
LAST_S = live_page._LAST_S


@bolt(output="word string, at long")
def split(tuple):
    return [(word, tuple["at"]) for word in tuple["sentence"].split("|")]


@tumbling(millis(10), timestamp="at", late_stream="late", output="word string, n long")
def tens(window):
    return (window.get()[0]["word"], len(window))


@bolt(output="word string")
def ends(tuple):
    return tuple["word"]


def topology():
    builder = TopologyBuilder("words")
    builder.set_spout("sentences", InputSpout("sentence string, at long"))
    builder.set_bolt("split", split, 2).shuffle_grouping("sentences")
    builder.set_bolt("tens", tens).global_grouping("split")
    builder.set_bolt("ends", ends).shuffle_grouping("tens").shuffle_grouping("tens", "late")
    return builder.build()


BATCHES = [[("to|be", 1), (f"{HOSTILE}|be", 15)], [("again|at", 31)], [(f"{HOSTILE}", 2)]]


@pytest.fixture(autouse=True)
def without_a_wait(monkeypatch):
    """A page is closed at once, although it was asked for its numbers."""
    monkeypatch.setattr(live_page, "_LAST_S", 0)


@pytest.fixture
def page():
    with LocalCluster(topology(), batches={"sentences": BATCHES}, clock=VirtualClock(40)) as cluster:
        metrics = ClusterMetrics(cluster)
        cluster.run()
        with serve_page(metrics.now, cluster.topology) as found:
            yield found


def port_of(page):
    return int(re.fullmatch(r"http://127\.0\.0\.1:(\d+)/", page.url).group(1))


def asked(page, path="/", method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port_of(page), timeout=10)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer, answer.read()
    finally:
        connection.close()


def test_the_page_has_the_metrics_of_the_run_and_counts_on_the_edges(page):
    _, body = asked(page, "/now")
    shown = json.loads(body)
    counts = {(edge["source"], edge["target"], edge["label"]): edge["count"] for edge in shown["edges"]}
    assert counts == {
        ("sentences", "split", "shuffle"): 4,
        ("split", "tens", "global"): 7,
        ("tens", "ends", "shuffle"): 3,
        ("tens", "ends", "late: shuffle"): 1,
    }
    assert shown["components"]["tens"]["late"] == {"late": 1}
    assert [window[0] for window in shown["components"]["tens"]["windows"]] == [10, 20, 40]
    assert shown["components"]["tens"]["late_rows"][0][0] == "late"
    assert shown["over"] is False


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:80"},
        {"Host": "127.0.0.1"},
        {"Host": ""},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
    ],
)
@pytest.mark.parametrize("path", ["/", "/now", "/page.js"])
def test_a_request_with_another_host_or_from_another_site_is_refused(page, path, headers):
    answer, body = asked(page, path, **headers)
    assert answer.status == 403
    assert b"words" not in body


def test_many_idle_connections_take_few_threads_of_the_run_and_the_page_answers_again_after_them(page):
    before = threading.active_count()
    idle = [socket.create_connection(("127.0.0.1", port_of(page)), timeout=10) for _ in range(100)]
    try:
        assert idle[-1].recv(1) == b"", "it is closed at once"
        assert threading.active_count() - before <= 64
    finally:
        for each in idle:
            each.close()
    for _ in range(100):
        with suppress(OSError, http.client.HTTPException):
            assert asked(page, "/now")[0].status == 200
            return
        time.sleep(0.05)
    raise AssertionError("the page does not answer any more")


def test_the_page_answers_again_after_many_connections_for_which_there_was_no_thread(page, monkeypatch):
    def without_threads(server, request, client_address):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(ThreadingMixIn, "process_request", without_threads)
        for _ in range(70):
            with socket.create_connection(("127.0.0.1", port_of(page)), timeout=10) as refused:
                assert refused.recv(1) == b"", "it is closed at once"
    assert asked(page, "/now")[0].status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
def test_methods_other_than_get_are_refused(page, method):
    answer, _ = asked(page, "/now", method)
    assert answer.status == 501


@pytest.mark.parametrize("path", ["/page.py", "/../page.py", "/%2e%2e/__init__.py", "/now?x=1", "/page.js/"])
def test_other_paths_are_not_found(page, path):
    assert asked(page, path)[0].status == 404


@pytest.mark.parametrize("path", ["/", "/now", "/page.js", "/page.css"])
def test_the_headers_forbid_foreign_scripts_framing_and_cross_site_reads(page, path):
    answer, _ = asked(page, path)
    policy = answer.getheader("Content-Security-Policy")
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.getheader("X-Content-Type-Options") == "nosniff"
    assert answer.getheader("Access-Control-Allow-Origin") is None
    assert "python" not in answer.getheader("Server", "").lower()


def test_an_arrow_has_the_tuples_emitted_on_its_stream_in_a_topology_and_in_its_plan():
    with LocalCluster(topology(), batches={"sentences": BATCHES}, clock=VirtualClock(40)) as cluster:
        metrics = ClusterMetrics(cluster)
        cluster.run()
    of_topology = [("ends", 1), ("ends", 3), ("split", 4), ("tens", 7)]
    for drawn, counts in ((cluster.topology, of_topology), (execution_plan(cluster.topology), [("tens", 7)])):
        with serve_page(metrics.now, drawn) as served:
            edges = json.loads(asked(served, "/now")[1])["edges"]
        assert sorted((edge["target"], edge["count"]) for edge in edges) == counts
    with serve_page(lambda: RunMetrics(name="t", at_ms=0, tasks=()), execution_plan(tens)) as served:
        (edge,) = json.loads(asked(served, "/now")[1])["edges"]
    assert edge["count"] is None, "nothing of the bolt was counted"


def test_a_prompt_and_a_notebook_show_the_address_of_the_page(page):
    assert repr(page) == f"LivePage('http://127.0.0.1:{port_of(page)}/')"


def test_the_server_listens_on_loopback_only(page):
    with socket.socket() as other:  # the port is in use on 127.0.0.1 only
        other.bind(("127.0.0.2", port_of(page)))
    with pytest.raises(ConfigError, match="give another port="):
        serve_page(lambda: RunMetrics(name="t", at_ms=0, tasks=()), port=port_of(page))


@pytest.mark.parametrize("port", [-1, 70_000, "x", None])
def test_a_port_that_is_none_is_refused_in_one_sentence(port):
    with pytest.raises(ConfigError, match=rf"port {port!r} of 127.0.0.1 cannot be served: .*give another port="):
        serve_page(lambda: RunMetrics(name="t", at_ms=0, tasks=()), port=port)


def test_a_browser_that_shows_the_page_has_the_last_numbers_when_it_is_closed(monkeypatch):
    state = {"executed": 0}

    def now():
        return RunMetrics(name="t", at_ms=0, tasks=(TaskMetrics("b", 0, executed=state["executed"]),))

    monkeypatch.setattr(live_page, "_LAST_S", 1)
    page = serve_page(now)
    state["executed"] = 5
    while (found := json.loads(asked(page, "/now")[1]))["components"]["b"]["executed"] != 5:
        time.sleep(0.05)
    assert not found["over"]
    state["executed"] = 1_000  # what the run did after the last sample
    closing = threading.Thread(target=page.close)
    closing.start()
    while not (last := json.loads(asked(page, "/now")[1]))["over"]:
        pass
    closing.join()
    assert last["components"]["b"]["executed"] == 1_000
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("windowing-page")]


def test_a_page_that_no_browser_shows_is_closed_at_once(monkeypatch):
    monkeypatch.setattr(live_page, "_LAST_S", 1_000)
    serve_page(lambda: RunMetrics(name="t", at_ms=0, tasks=())).close()


def test_a_page_that_closes_waits_longer_than_a_browser_between_two_requests():
    script = Path(live_page.__file__).with_suffix(".js").read_text(encoding="utf-8")
    (between_ms,) = re.findall(r"setTimeout\(follow, (\d+)\)", script)
    assert int(between_ms) + 250 < 1000 * LAST_S


def test_a_failing_source_is_shown_on_the_page_and_the_page_recovers():
    state = {"fails": True}

    def now():
        if state["fails"]:
            raise RuntimeError("the JVM is gone")
        return RunMetrics(name="t", at_ms=0, tasks=())

    with serve_page(now) as page:
        page._state.take()
        assert "the JVM is gone" in json.loads(asked(page, "/now")[1])["problem"]
        state["fails"] = False
        page._state.take()
        assert json.loads(asked(page, "/now")[1])["name"] == "t"


def test_the_edges_of_a_plan_show_the_executed_tuples():
    plan = execution_plan(tens)
    run = RunMetrics(name="tens", at_ms=0, tasks=(TaskMetrics("tens", 0, executed=5, windows=(FiredWindow(10, "x"),)),))
    with serve_page(lambda: run, plan) as page:
        page._state.take()
        shown = json.loads(asked(page, "/now")[1])
    assert [edge["count"] for edge in shown["edges"]] == [5]
    assert {box["name"] for box in shown["boxes"]} >= {"tens"}


def test_an_invalid_source_is_refused():
    with pytest.raises(ConfigError, match=r"ClusterMetrics\(cluster\)\.now"):
        serve_page(RunMetrics(name="t", at_ms=0, tasks=()))


# -- in a browser: make test-browser ---------------------------------------------------------------------------------------------


def browser():
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if shutil.which(name):
            return name
    pytest.fail("there is no chromium on the PATH: apt-get install chromium")


def shown_by_browser(url, profile: Path, budget_ms=5_000):
    """Return the document in the browser after its script has run."""
    command = [browser(), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
    command += [f"--virtual-time-budget={budget_ms}", "--dump-dom", url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.browser
@pytest.mark.parametrize("how", ["", "#once"])
def test_a_browser_draws_the_topology_and_shows_data_as_text(page, tmp_path, monkeypatch, how):
    def ended_when_it_was_asked():
        while page._server.asked < 0:
            time.sleep(0.01)
        page.close()

    if not how:  # the page follows the run to its end
        monkeypatch.setattr(live_page, "_LAST_S", 10)
        threading.Thread(target=ended_when_it_was_asked, daemon=True).start()
    document = shown_by_browser(page.url + how, tmp_path, 60_000)
    assert ("the run has ended" in document) == (not how)
    assert "<title>words - windowing</title>" in document  # the script in the data has not run
    body = document[document.index("<main>") :]
    assert "<script" not in body
    assert "<img" not in body
    assert HOSTILE[:40] in unescape(body)
    assert "&lt;script&gt;" in body
    for text in (">sentences<", ">split ×2<", "window 10 ms / 10 ms", ">1970-01-01 00:00:00.010<", ">late<"):
        assert text in body
    assert re.findall(r'class="count">(\d+)<', body) == ["4", "7", "3", "1"]
    assert body.count("<polyline") >= 2


@pytest.mark.browser
def test_a_browser_draws_a_line_for_each_of_many_components_after_a_quarter_of_an_hour(tmp_path, monkeypatch):
    run = RunMetrics(name="many", at_ms=1, tasks=tuple(TaskMetrics(f"c{n}", 0, pending=n) for n in range(200)))
    kept = "Array(899).fill([0, Object.fromEntries(Array.from({length: 200}, (_, n) => [`c${n}`, [null, n]]))])"
    for name, _ in live_page._FILES.values():
        text = Path(live_page.__file__).with_name(name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(text.replace("past = []", f"past = {kept}"))
    assert kept in (tmp_path / "page.js").read_text()
    monkeypatch.setattr(live_page, "files", lambda package: tmp_path)
    with serve_page(lambda: run) as page:
        document = shown_by_browser(page.url + "#once", tmp_path)
    assert document.count("<polyline") == 200
    assert ">c199: 199<" in document
    (points,) = re.findall(r'<polyline points="([^"]*)"[^>]*></polyline><rect[^>]*></rect><text[^>]*>c199:', document)
    assert points.count(",") == 900
