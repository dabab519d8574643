"""What is in deploy/ is what it says: linters read every file, and the numbers in them fit the gateway's own."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import crossplane
import httpx
import pytest
import yaml

from tests.support.gateway import Gateway
from toolwire.config.settings import Server, load

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy"
DRAINS = 2 * Server().drain
"""Seconds that turns have, and then background runs."""
YAML = ("compose.yaml", "kubernetes.yaml")
ENVIRONMENT = {"TOOLWIRE_STORE_URL": "postgresql://u:p@database/toolwire", "TOOLWIRE_KEY": "k"}


def tool(name: str) -> str:
    """A program beside this Python or on the path; without it the test is skipped, and says so."""
    beside = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    found = shutil.which(name, path=beside)
    if found is None:
        pytest.skip(f"needs {name}")
    return found


def clean_run(*command: str, **more: Any) -> str:
    """What a program says that must find nothing."""
    result = subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120, check=False, **more
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def seconds(text: str) -> float:
    return float(text.removesuffix("s"))


# The image


def test_hadolint_finds_nothing_in_the_dockerfile():
    clean_run(tool("hadolint"), str(DEPLOY / "Dockerfile"))


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n\s*", "", (DEPLOY / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in lines]


def test_the_image_is_slim_has_a_user_of_its_own_and_a_health_check():
    found = instructions()
    assert all("-slim" in rest for name, rest in found if name == "FROM")
    users = [rest for name, rest in found if name == "USER"]
    assert users
    assert users[-1] not in ("root", "0")
    assert [name for name, _ in found].count("HEALTHCHECK") == 1


def test_what_the_image_copies_is_there_and_not_ignored():
    kept = {line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")}
    for name, rest in instructions():
        if name == "COPY" and not rest.startswith("--from"):
            for source in shlex.split(rest)[:-1]:
                assert (ROOT / source).exists(), source
                assert source in kept, source


def test_the_health_check_of_the_image_works(gateway: Gateway):
    [check] = [rest for name, rest in instructions() if name == "HEALTHCHECK"]
    command = json.loads(check.partition("CMD ")[2])
    assert command[0] == "python"
    clean_run(sys.executable, *(word.replace("http://127.0.0.1:8787", gateway.url) for word in command[1:]))
    broken = [word.replace("http://127.0.0.1:8787", gateway.url + "/none") for word in command[1:]]
    assert subprocess.run([sys.executable, *broken], capture_output=True, timeout=120, check=False).returncode != 0


def test_the_extras_that_the_image_installs_are_there():
    [install] = [rest for name, rest in instructions() if name == "RUN" and "pip install" in rest]
    [extras] = re.findall(r"\.\[([\w,]+)\]", install)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(extras.split(",")) == {*project["optional-dependencies"]}
    assert re.findall(r"--constraint (\S+)", install) == ["requirements.txt", "requirements-extras.txt"]


# Configurations


def test_the_configurations_are_read_and_are_the_same(tmp_path, monkeypatch):
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    [config] = [each for each in documents("kubernetes.yaml") if each["kind"] == "ConfigMap"]
    (tmp_path / "toolwire.toml").write_text(config["data"]["toolwire.toml"])
    ours, theirs = (load(str(folder / "toolwire.toml")) for folder in (DEPLOY, tmp_path))
    assert (ours.server, ours.store, ours.keys) == (theirs.server, theirs.store, theirs.keys)
    assert ours.store.required
    assert ours.server.workers > 1


# Compose


@pytest.mark.parametrize("name", YAML)
def test_yamllint_finds_nothing(name):
    rules = "{extends: default, rules: {line-length: {max: 120}}}"
    clean_run(tool("yamllint"), "--strict", "--config-data", rules, str(DEPLOY / name))


def test_what_the_services_name_is_there():
    [compose] = documents("compose.yaml")
    services = compose["services"]
    for service in services.values():
        assert set(service.get("depends_on", ())) <= set(services)
        for name, condition in service.get("depends_on", {}).items():
            has_check = "healthcheck" in services[name] or "build" in services[name]
            assert condition["condition"] != "service_healthy" or has_check
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert source in compose["volumes"] or (DEPLOY / source).exists(), source
    ours = services["toolwire"]
    assert (DEPLOY / ours["build"]["context"] / ours["build"]["dockerfile"]).resolve() == DEPLOY / "Dockerfile"
    assert ours["deploy"]["replicas"] == 2
    assert seconds(ours["stop_grace_period"]) > DRAINS
    assert set(ours["environment"]) == set(ENVIRONMENT)


# Workflows

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
RELEASE = ROOT / ".github" / "workflows" / "release.yml"
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_is_well_formed_and_asks_for_little(path: Path):
    rules = "{extends: default, rules: {line-length: {max: 120}, document-start: disable, truthy: {check-keys: false}, comments: {min-spaces-from-content: 1}}}"
    clean_run(tool("yamllint"), "--strict", "--config-data", rules, str(path))
    workflow = yaml.safe_load(path.read_text())
    assert {*workflow} <= {"name", "on", True, "permissions", "concurrency", "env", "defaults", "jobs"}
    assert "write" not in str(workflow["permissions"]), "a job that writes says so itself"
    for name, job in workflow["jobs"].items():
        assert job["timeout-minutes"] <= 120, name
        needs = job.get("needs", [])
        assert {*([needs] if isinstance(needs, str) else needs)} <= {*workflow["jobs"]}, name
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step), step
            assert "${{" not in step.get("run", ""), "what others can name goes through the environment"
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False, name


def test_targets_that_workflows_make_are_there():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for path in WORKFLOWS:
        for job in yaml.safe_load(path.read_text())["jobs"].values():
            named = re.findall(r"\bmake ([a-z-]+)", "\n".join(step.get("run", "") for step in job["steps"]))
            assert {*named} <= targets, path.name


def test_a_release_is_published_by_a_tag_after_the_tests_with_least_rights():
    text = RELEASE.read_text()
    workflow = yaml.safe_load(text)
    assert (workflow[True], workflow["permissions"]) == ({"push": {"tags": ["v*"]}}, {})
    jobs = workflow["jobs"]
    assert {name: job["permissions"] for name, job in jobs.items()} == {
        "build": {"contents": "read"},
        "test": {"contents": "read"},
        "package": {"id-token": "write"},
        "image": {"contents": "read", "packages": "write"},
    }
    for name in ("package", "image"):
        assert set(jobs[name]["needs"]) == {"build", "test"}
        assert jobs[name]["environment"] == "release"
    uses = [step["uses"] for job in jobs.values() for step in job["steps"] if "uses" in step]
    assert [each for each in uses if not PINNED.fullmatch(each)] == []
    assert len(re.findall(r"uses: \S+ # v\d+\.\d+\.\d+$", text, re.MULTILINE)) == len(uses), "each says its version"
    assert "secrets." not in text, "trusted publishing needs no secret"
    for step in (step for job in jobs.values() for step in job["steps"] if "run" in step):
        clean_run("bash", "-n", "-c", step["run"])
    for file in re.findall(r"--file (\S+)", text):
        assert (ROOT / file).exists()


# nginx


def nginx_directives() -> dict[str, list[list[str]]]:
    path = str(DEPLOY / "nginx.conf")
    parsed = crossplane.parse(path)
    entries = {
        entry["line"]
        for http in parsed["config"][0]["parsed"]
        for each in http.get("block", [])
        if each["directive"] == "map"
        for entry in each["block"]
    }
    errors = crossplane.parse(path, strict=True)["errors"]
    assert [each for each in errors if each["line"] not in entries] == [], "those of a map are no directives"
    found: dict[str, list[list[str]]] = {}

    def walk(block: list[dict[str, Any]]) -> None:
        for each in block:
            found.setdefault(each["directive"], []).append(each["args"])
            walk(each.get("block", []))

    walk(parsed["config"][0]["parsed"])
    return found


def test_nginx_holds_no_stream_back_and_is_patient():
    found = nginx_directives()
    assert found["proxy_buffering"] == [["off"]]
    assert seconds(found["proxy_read_timeout"][0][0]) >= 600
    assert seconds(found["keepalive_timeout"][0][0]) < Server().idle_timeout
    assert "non_idempotent" not in found["proxy_next_upstream"][0], "no turn is begun twice"
    assert found["client_max_body_size"] == [["32m"]]
    assert Server().max_body == "32MB"


# Kubernetes


def test_the_manifest_fits_the_schema_of_kubernetes():
    clean_run(tool("kubernetes-validate"), "--strict", str(DEPLOY / "kubernetes.yaml"))


def test_the_manifest_is_coherent():
    found = {each["kind"]: each for each in documents("kubernetes.yaml")}
    assert list(found) == ["ConfigMap", "Deployment", "Service", "PodDisruptionBudget"]
    spec = found["Deployment"]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    for selector in (
        spec["selector"]["matchLabels"],
        found["Service"]["spec"]["selector"],
        found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()
    pod = spec["template"]["spec"]
    [container] = pod["containers"]
    probes = {name: container[name]["httpGet"]["path"] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert probes == {"startupProbe": "/readyz", "readinessProbe": "/readyz", "livenessProbe": "/healthz"}
    pause = float(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > pause + DRAINS
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


def scrape_configs() -> list[dict[str, Any]]:
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "deploy.md").read_text(), re.DOTALL)
    return [job for block in blocks for job in yaml.safe_load(block)["scrape_configs"]]


def test_what_reads_the_numbers_has_a_key():
    """Annotations of a pod would have Prometheus ask without one."""
    manifest = (DEPLOY / "kubernetes.yaml").read_text()
    assert "key_env" in manifest
    assert "prometheus.io/" not in manifest
    jobs = scrape_configs()
    assert len(jobs) == 2
    assert all("credentials_file" in job["authorization"] for job in jobs)
    labels = [rule["regex"] for job in jobs for rule in job.get("relabel_configs", ())]
    [deployment] = [each for each in documents("kubernetes.yaml") if each["kind"] == "Deployment"]
    template = deployment["spec"]["template"]
    names = {template["metadata"]["labels"]["app.kubernetes.io/name"]}
    names |= {port["name"] for port in template["spec"]["containers"][0]["ports"]}
    assert set(labels) == names


def test_the_numbers_are_read_with_a_key_and_not_without(tmp_path):
    gateway = Gateway(tmp_path, '[[keys]]\nname = "prometheus"\nkey = "its-key"\n')
    try:
        asked = [{}, {"authorization": "Bearer its-key"}]
        answers = [httpx.get(f"{gateway.url}/metrics", headers=each, trust_env=False) for each in asked]
        assert [answer.status_code for answer in answers] == [401, 200]
    finally:
        gateway.stop()


# systemd


def test_systemd_takes_the_unit(tmp_path):
    analyze = tool("systemd-analyze")
    unit = (DEPLOY / "toolwire.service").read_text().replace("/opt/toolwire/bin/toolwire", sys.executable)
    (tmp_path / "toolwire.service").write_text(unit)
    clean_run(analyze, "verify", str(tmp_path / "toolwire.service"))


def test_the_unit_reloads_by_sighup_and_waits_long_enough():
    unit = (DEPLOY / "toolwire.service").read_text()
    found = dict(line.split("=", 1) for line in unit.splitlines() if "=" in line and not line.startswith("#"))
    assert found["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert float(found["TimeoutStopSec"]) > DRAINS
    assert (found["KillMode"], found["RestartPreventExitStatus"]) == ("mixed", "2")
