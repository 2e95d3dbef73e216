"""The files to deploy with: each is valid, names settings that there are, and what it starts works as it says."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from bare_root import ROOT, BareRoot, dockerfile
from conftest import DEADLINE_S, Json, environment, run
from perdure.settings import load_settings, variable_of, walk_settings
from tokens import post

DEPLOY = ROOT / "deploy"
MANIFESTS = sorted(path for path in (DEPLOY / "kubernetes").glob("*.yaml") if path.stem != "kustomization")
KUBERNETES = "1.34"
TOKEN = "a-token-of-some-length"


def manifest(kind: str) -> Any:  # Any: YAML
    (found,) = (each for path in MANIFESTS if (each := yaml.safe_load(path.read_text()))["kind"] == kind)
    return found


def container() -> Any:  # Any: YAML
    (found,) = manifest("StatefulSet")["spec"]["template"]["spec"]["containers"]
    return found


def test_the_compose_file_is_as_the_compose_specification_has_it() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*command, str(DEPLOY / "compose.yaml")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_each_manifest_is_as_kubernetes_has_it(path: Path) -> None:
    kubernetes_validate.validate(yaml.safe_load(path.read_text()), KUBERNETES, strict=True)


def test_the_kustomization_names_all_manifests_but_the_secret() -> None:
    named = yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text())["resources"]
    assert sorted([*named, "secret.yaml"]) == [path.name for path in MANIFESTS]


def test_every_variable_that_is_set_is_a_setting() -> None:
    known = {variable_of(section, name) for section, name, _, _ in walk_settings()}
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["perdure"]["environment"]
    for named in (set(compose), {each["name"] for each in container()["env"]}):
        assert named and named <= known


def test_the_parts_of_the_manifests_fit_each_other_the_image_and_the_settings() -> None:
    pod, service, says = manifest("StatefulSet")["spec"]["template"], manifest("Service"), dockerfile()
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert manifest("StatefulSet")["spec"]["serviceName"] == service["metadata"]["name"]
    port = load_settings(ROOT / "config.example.toml").http.port
    assert container()["ports"] == [{"name": "http", "containerPort": port}] and says["EXPOSE"] == str(port)
    assert service["spec"]["ports"] == [{"name": "http", "port": port, "targetPort": "http"}]
    mounts = {each["name"]: each["mountPath"] for each in container()["volumeMounts"]}
    assert mounts["data"] == says["VOLUME"] == says["WORKDIR"]
    env = {each["name"]: each for each in container()["env"]}
    secret = manifest("Secret")
    assert env["PERDURE_HTTP__TOKEN"]["valueFrom"]["secretKeyRef"] == {
        "name": secret["metadata"]["name"],
        "key": next(iter(secret["stringData"])),
    }
    grace = pod["spec"]["terminationGracePeriodSeconds"]
    assert grace >= int(env["PERDURE_HTTP__GRACE_S"]["value"]) + 15


def test_what_runs_may_do_no_more_than_it_needs() -> None:
    assert re.fullmatch(r"\d+", dockerfile()["USER"]), "runAsNonRoot can tell of a number alone"
    pod, inside = manifest("StatefulSet")["spec"]["template"]["spec"], container()["securityContext"]
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] > 0
    assert inside["readOnlyRootFilesystem"] and not inside["allowPrivilegeEscalation"]
    assert inside["capabilities"] == {"drop": ["ALL"]} and not pod["automountServiceAccountToken"]
    assert container()["resources"]["limits"]["memory"]


def test_the_token_of_the_example_is_refused(data_dir: Path) -> None:
    token: str = manifest("Secret")["stringData"]["token"]
    done = run("config", env=environment(data_dir, PERDURE_HTTP__TOKEN=token))
    assert done.returncode == 2 and "http.token" in done.stderr and token not in done.stderr


def test_what_kubernetes_sets_for_a_service_would_stop_the_start_and_is_not_set(data_dir: Path) -> None:
    assert manifest("StatefulSet")["spec"]["template"]["spec"]["enableServiceLinks"] is False
    name = manifest("Service")["metadata"]["name"].upper()
    done = run("config", env=environment(data_dir, **{f"{name}_PORT": "tcp://10.0.0.1:8420"}))
    assert done.returncode == 2 and "PERDURE_PORT" in done.stderr


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
        message: Json = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
        params = {"name": tool, "arguments": arguments}
        status, _, text = post(self, TOKEN, message | {"params": params}, Host=f"perdure:{self.port}")
        assert status == 200, text
        data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
        return json.loads(data[-1] if data else text)["result"]["structuredContent"]

    def stop(self) -> int:
        """Return the exit code."""
        if self._process.poll() is None:
            pid = self._process.pid
            (first,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            subprocess.run(["kill", f"-{signal.SIGTERM}", first], check=True)
        return self._process.wait(DEADLINE_S)


@pytest.fixture(params=["image", "kubernetes"])
def deployed(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[BareRoot, dict[str, str]]:
    """A root as the Dockerfile, or the manifest as well, makes it, and the settings it starts `serve` with."""
    settings = {"PERDURE_HTTP__TOKEN": TOKEN, "PERDURE_HTTP__PORT": "0"}
    if request.param == "image":
        return BareRoot(tmp_path, int(dockerfile()["USER"])), settings | {
            "PERDURE_HTTP__ALLOWED_HOSTS": '["perdure:*"]'
        }
    user = manifest("StatefulSet")["spec"]["template"]["spec"]["securityContext"]["runAsUser"]
    root = BareRoot(tmp_path, user)
    root.belong_to_root()
    return root, {each["name"]: each["value"] for each in container()["env"] if "value" in each} | settings


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
    serve = container()["args"]
    server: Running = start(root.entry(*serve, **settings))
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert server.status(container()[probe]["httpGet"]["path"]) == 200
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
