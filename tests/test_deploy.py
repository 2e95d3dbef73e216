"""The files to deploy with: each is valid, names settings that there are, and what it starts works as it says."""

from __future__ import annotations

import http.client
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any

import kubernetes_validate  # pyright: ignore[reportMissingTypeStubs]
import pytest
import yaml

from bare_root import ROOT, BareRoot, dockerfile
from conftest import DEADLINE_S, Json, environment, run
from index_servers import free_port
from perdure.settings import Settings, variable_of, walk_settings
from postgres import start_server
from tokens import Listening, message_in, post

pytestmark = pytest.mark.own_database

DEPLOY = ROOT / "deploy"
COMPOSED = ("compose.yaml", "compose-single.yaml")
FORMS = {"embedded": "StatefulSet", "replicas": "Deployment"}  # of Kubernetes, and what each of them runs
RUN = [*FORMS.items(), ("replicas", "Job")]
MANIFESTS = sorted(path for path in (DEPLOY / "kubernetes").rglob("*.yaml") if path.stem != "kustomization")
APART = ("secret.yaml", "migrate.yaml")  # applied by hand
KUBERNETES = "1.34"
PROXY = "haproxy"
TOKEN = "a-token-of-some-length"


def manifest(kind: str, form: str = "") -> Any:  # Any: YAML
    (found,) = (
        each
        for path in MANIFESTS
        if form in ("", path.parent.name) and (each := yaml.safe_load(path.read_text()))["kind"] == kind
    )
    return found


def pod(form: str, kind: str = "") -> Any:  # Any: YAML
    return manifest(kind or FORMS[form], form)["spec"]["template"]


def container(form: str, kind: str = "") -> Any:  # Any: YAML
    (found,) = pod(form, kind)["spec"]["containers"]
    return found


def composed(name: str, service: str) -> Any:  # Any: YAML
    return yaml.safe_load((DEPLOY / name).read_text())["services"][service]


@pytest.mark.parametrize("name", COMPOSED)
def test_each_compose_file_is_as_the_compose_specification_has_it(name: str) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*command, str(DEPLOY / name)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_each_manifest_is_as_kubernetes_has_it(path: Path) -> None:
    kubernetes_validate.validate(yaml.safe_load(path.read_text()), KUBERNETES, strict=True)


@pytest.mark.parametrize("form", ["base", *FORMS])
def test_each_kustomization_names_all_manifests_but_those_applied_by_hand(form: str) -> None:
    folder = DEPLOY / "kubernetes" / form
    named = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    assert ("../base" in named) == (form in FORMS)
    there = {path.name for path in MANIFESTS if path.parent == folder}
    assert {*named} - {"../base"} == there - {*APART}


def test_every_variable_that_is_set_is_a_setting() -> None:
    known = {variable_of(section, name) for section, name, _, _ in walk_settings()}
    named = [set(composed("compose.yaml", each)["environment"]) for each in ("perdure-1", "perdure-2")]
    named += [set(composed("compose-single.yaml", "perdure")["environment"])]
    named += [{each["name"] for each in container(*of)["env"]} for of in RUN]
    for each in named:
        assert each and each <= known


@pytest.mark.parametrize("form", FORMS)
def test_the_parts_of_the_manifests_fit_each_other_the_image_and_the_settings(form: str) -> None:
    service, says = manifest("Service"), dockerfile()
    assert service["spec"]["selector"].items() <= pod(form)["metadata"]["labels"].items()
    assert manifest(FORMS[form])["spec"].get("serviceName", "perdure") == service["metadata"]["name"]
    port = Settings.model_construct().http.port
    assert container(form)["ports"] == [{"name": "http", "containerPort": port}] and says["EXPOSE"] == str(port)
    assert service["spec"]["ports"] == [{"name": "http", "port": port, "targetPort": "http"}]
    mounts = {each["name"]: each["mountPath"] for each in container(form)["volumeMounts"]}
    assert mounts["data"] == says["VOLUME"] == says["WORKDIR"]
    env = {each["name"]: each for each in container(form)["env"]}
    secret = manifest("Secret", form)
    wanted = [each["valueFrom"]["secretKeyRef"] for each in env.values() if "valueFrom" in each]
    assert {each["name"] for each in wanted} == {secret["metadata"]["name"]}
    assert {each["key"] for each in wanted} == set(secret["stringData"])
    grace = pod(form)["spec"]["terminationGracePeriodSeconds"]
    assert grace >= int(env["PERDURE_HTTP__GRACE_S"]["value"]) + 15


def test_the_migration_runs_the_image_of_the_servers_on_their_database() -> None:
    server, job = container("replicas"), container("replicas", "Job")
    assert job["image"] == server["image"] and job["args"] == ["migrate"]
    assert {each["name"]: each for each in job["env"]}.items() <= {each["name"]: each for each in server["env"]}.items()


@pytest.mark.parametrize(("form", "kind"), RUN)
def test_what_runs_may_do_no_more_than_it_needs(form: str, kind: str) -> None:
    assert re.fullmatch(r"\d+", dockerfile()["USER"]), "runAsNonRoot can tell of a number alone"
    spec, inside = pod(form, kind)["spec"], container(form, kind)["securityContext"]
    assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["runAsUser"] > 0
    assert inside["readOnlyRootFilesystem"] and not inside["allowPrivilegeEscalation"]
    assert inside["capabilities"] == {"drop": ["ALL"]} and not spec["automountServiceAccountToken"]
    assert container(form, kind)["resources"]["limits"]["memory"]


@pytest.mark.parametrize("form", FORMS)
def test_the_token_of_the_example_is_refused(data_dir: Path, form: str) -> None:
    token: str = manifest("Secret", form)["stringData"]["token"]
    done = run("config", env=environment(data_dir, PERDURE_HTTP__TOKEN=token))
    assert done.returncode == 2 and "http.token" in done.stderr and token not in done.stderr


def test_what_kubernetes_sets_for_a_service_would_stop_the_start_and_is_not_set(data_dir: Path) -> None:
    assert not any(pod(*of)["spec"]["enableServiceLinks"] for of in RUN)
    name = manifest("Service")["metadata"]["name"].upper()
    done = run("config", env=environment(data_dir, **{f"{name}_PORT": "tcp://10.0.0.1:8420"}))
    assert done.returncode == 2 and "PERDURE_PORT" in done.stderr


def call(server: Listening, tool: str, **arguments: object) -> Json:
    message: Json = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": tool, "arguments": arguments},
    }
    status, _, text = post(server, TOKEN, message, Host=f"perdure:{server.port}")
    assert status == 200, text
    return message_in(text)["result"]["structuredContent"]


def attempted(ask: Callable[..., Json], tool: str, **arguments: object) -> Json:
    """Return what a call answers, nothing if it was cut off or there was no server for it."""
    try:
        return ask(tool, **arguments)
    except (OSError, http.client.HTTPException, AssertionError):
        return {}


class Running:
    """A server in a bare root, told to stop as an engine does it: by a signal to its first process."""

    def __init__(self, command: list[str], log: Path) -> None:
        with log.open("wb") as errors:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)
        self._log = log
        self.port = 0
        deadline = time.monotonic() + 2 * DEADLINE_S
        while not (found := re.search(r"listens on http://\S+:(\d+)/mcp", self.said())):
            assert self._process.poll() is None and time.monotonic() < deadline, self.said()
            time.sleep(0.1)
        self.port = int(found[1])

    def said(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def status(self, path: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE_S)
        try:
            connection.request("GET", path, headers={"Host": f"10.1.2.3:{self.port}"})  # the pod's, as probes send it
            return connection.getresponse().status
        finally:
            connection.close()

    def call(self, tool: str, **arguments: object) -> Json:
        return call(self, tool, **arguments)

    def stop(self, sent: signal.Signals = signal.SIGTERM) -> int:
        """Return the exit code."""
        if self._process.poll() is None:
            pid = self._process.pid
            (first,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            subprocess.run(["kill", f"-{sent}", first], check=True)
        return self._process.wait(DEADLINE_S)


@pytest.fixture(params=[pytest.param("image", marks=pytest.mark.thorough), "kubernetes"])
def deployed(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[BareRoot, dict[str, str]]:
    """A root as the Dockerfile, or the manifest as well, makes it, and the settings it starts `serve` with."""
    settings = {"PERDURE_HTTP__TOKEN": TOKEN, "PERDURE_HTTP__PORT": "0"}
    if request.param == "image":
        return BareRoot(tmp_path, int(dockerfile()["USER"])), settings | {
            "PERDURE_HTTP__ALLOWED_HOSTS": '["perdure:*"]'
        }
    root = BareRoot(tmp_path, pod("embedded")["spec"]["securityContext"]["runAsUser"])
    root.belong_to_root()
    return root, plain("embedded") | settings


def plain(form: str) -> dict[str, str]:
    """Return the variables that a manifest sets, but for secrets."""
    return {each["name"]: each["value"] for each in container(form)["env"] if "value" in each}


@pytest.fixture
def start(tmp_path: Path) -> Generator[Any]:  # Any: a function with the arguments of Running
    running: list[Running] = []

    def started(command: list[str]) -> Running:
        running.append(Running(command, tmp_path / f"log-{len(running)}"))
        return running[-1]

    yield started
    for each in running:
        each.stop()


def test_the_image_runs_on_a_read_only_root_as_its_user_and_as_any_other(
    deployed: tuple[BareRoot, dict[str, str]], start: Any
) -> None:
    root, settings = deployed
    refused = subprocess.run(root.within("touch", "/tmp/x"), capture_output=True, text=True, check=False)
    assert refused.returncode != 0 and "Read-only file system" in refused.stderr
    serve, probes = container("embedded")["args"], container("embedded")
    server: Running = start(root.entry(*serve, **settings))
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert server.status(probes[probe]["httpGet"]["path"]) == 200
    assert server.status("/readyz?writes") == 200
    server.call("remember", content="the code word is heron")
    server.call("write_file", path="notes/bird.md", content="It wades.\n")
    checked = subprocess.run(root.health_check(**settings), capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert server.stop() == 0, server.said()
    again: Running = start(root.entry(*serve, **settings))
    (hit,) = again.call("recall", query="which bird is the code word?", include=["memories"])["hits"]
    assert "heron" in hit["content"]
    assert again.stop() == 0 and "Traceback" not in server.said() + again.said()


class Proxy:
    """What clients call: the proxy of the compose file with its own settings, but for the addresses."""

    def __init__(self, folder: Path, *servers: Running) -> None:
        self.port = free_port()
        settings = (DEPLOY / "haproxy.cfg").read_text().replace("bind :8420", f"bind 127.0.0.1:{self.port}")
        for n, server in enumerate(servers, 1):
            named = f"perdure-{n}:8420"
            assert named in settings
            settings = settings.replace(named, f"127.0.0.1:{server.port}")
        file = folder / "haproxy.cfg"
        file.write_text(settings)
        self._process = subprocess.Popen([PROXY, "-W", "-f", str(file)])

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(DEADLINE_S)


@pytest.fixture(params=["compose", pytest.param("kubernetes", marks=pytest.mark.thorough)])
def fleet(request: pytest.FixtureRequest, tmp_path: Path, start: Any) -> Generator[Any]:
    """Start two servers as the files that run them on Postgres do, and the proxy before them."""
    if shutil.which(PROXY) is None:
        pytest.skip("the proxy of the compose file is not installed: apt-get install haproxy")
    port = free_port()
    server = start_server("listen_addresses=127.0.0.1", f"port={port}")
    url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
    settings = {"PERDURE_HTTP__TOKEN": TOKEN, "PERDURE_HTTP__PORT": "0", "PERDURE_DATABASE__URL": url}
    servers: list[Running] = []
    for n in (1, 2):
        if request.param == "compose":
            service = composed("compose.yaml", f"perdure-{n}")
            said, user, serve = service["environment"], int(dockerfile()["USER"]), service["command"]
        else:
            said, user = plain("replicas"), pod("replicas")["spec"]["securityContext"]["runAsUser"]
            serve = container("replicas")["args"]
        folder = tmp_path / str(n)
        folder.mkdir()
        root = BareRoot(folder, user)
        if request.param == "kubernetes":
            root.belong_to_root()
        servers.append(start(root.entry(*serve, **(said | settings))))
    proxy = Proxy(tmp_path, *servers)
    try:
        until = time.monotonic() + DEADLINE_S
        while not attempted(partial(call, proxy), "list_files"):
            assert time.monotonic() < until
            time.sleep(0.1)
        yield proxy, servers
    finally:
        proxy.stop()
        server.stop("immediate")


def test_two_servers_on_postgres_behind_the_proxy_are_one_memory_and_one_may_die(
    fleet: tuple[Proxy, list[Running]],
) -> None:
    proxy, (first, second) = fleet
    ready = container("replicas")["readinessProbe"]["httpGet"]["path"]
    assert first.status(ready) == second.status(ready) == 200
    ask = partial(call, proxy)
    ask("remember", content="the code word is heron")
    ask("write_file", path="notes/bird.md", content="It wades.\n")
    listed = [server.call("list_files", path="notes") for server in (first, second)]
    assert "bird.md" in str(listed[0]) and listed[0] == listed[1]
    first.stop(signal.SIGKILL)
    died = time.monotonic()
    while not (hits := attempted(ask, "recall", query="which bird is the code word?", include=["memories"])):
        assert time.monotonic() < died + 5
        time.sleep(0.1)
    assert "heron" in hits["hits"][0]["content"]
    for n in range(10):
        ask("remember", content=f"number {n} came after it")
    assert second.stop() == 0 and "Traceback" not in second.said()
