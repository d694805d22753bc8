"""Check that the image, the manifests and the compose file in deploy/ are valid, and agree with the command line."""

from __future__ import annotations

import copy
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from tests.support import deploy_files
from tests.support.deploy_files import DEPLOY, PIPELINE, PORT, ROOT
from typer.main import get_command

from slackwater.cli.check import check_file
from slackwater.cli.main import app
from slackwater.errors import StartError
from slackwater.health_probes import LIVE, READY
from slackwater.spark.sessions import spark_jars

SCHEMAS = ROOT / "tests/fixtures/schemas"
KUBERNETES: dict[str, Any] = json.loads((SCHEMAS / "kubernetes.json").read_text())
COMPOSE = Draft202012Validator(json.loads((SCHEMAS / "compose.json").read_text()))
SECRETS = {"KAFKA": "kafka:9092", "WAREHOUSE_URL": "postgresql://u:p@h/d"}


def find_schema_violations(document: dict[str, Any]) -> list[str]:
    """Return the violations of the Kubernetes schema in a document."""
    kind = f"{document['apiVersion']} {document['kind']}"
    schema = {"$defs": KUBERNETES["$defs"], **KUBERNETES["kinds"][kind]}
    return [f"{error.json_path}: {error.message}" for error in Draft202012Validator(schema).iter_errors(document)]


def parse_command_options(arguments: list[str]) -> dict[str, Any]:
    """Parse the options of a `slackwater` command without running it."""
    command: Any = get_command(app)
    one = command.commands[arguments[0]]
    return dict(one.make_context(arguments[0], list(arguments[1:])).params)


# -- Kubernetes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("document", deploy_files.read_kubernetes_documents(), ids=lambda d: d["kind"])
def test_each_kubernetes_manifest_matches_the_kubernetes_schema(document: dict[str, Any]) -> None:
    assert find_schema_violations(document) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "strategy"), {"type": "Recreated", "rolling": {}}),
        (("spec", "replicas"), "one"),
        (("spec", "template", "spec", "containers", 0, "livenessProbes"), {}),
        (("spec", "template", "spec", "containers", 0, "readinessProbe", "httpGet"), {"path": "/readyz"}),
        (("spec", "template", "spec", "terminationGracePeriodSeconds"), "2m"),
    ],
)
def test_kubernetes_schema_refuses_an_invalid_manifest(path: tuple[Any, ...], value: Any) -> None:
    document = copy.deepcopy(deploy_files.read_kubernetes_deployment())
    parent: Any = document
    for step in path[:-1]:
        parent = parent[step]
    parent[path[-1]] = value
    assert find_schema_violations(document)


def test_deployment_stops_its_only_runner_before_the_next_one_starts() -> None:
    spec = deploy_files.read_kubernetes_deployment()["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] >= 60
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= labels.items()


def test_pod_uses_existing_command_options_and_probe_paths() -> None:
    pod = deploy_files.read_kubernetes_deployment()["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    options = parse_command_options(container["args"])
    assert (str(options["file"]), options["metrics_host"]) == (PIPELINE, "0.0.0.0")
    (port,) = container["ports"]
    assert port["containerPort"] == options["metrics_port"] == int(PORT)
    probes = {name: container[name]["httpGet"] for name in ("livenessProbe", "readinessProbe")}
    assert probes == {
        "livenessProbe": {"path": LIVE, "port": port["name"]},
        "readinessProbe": {"path": READY, "port": port["name"]},
    }
    assert pod["metadata"]["annotations"]["prometheus.io/port"] == PORT


def test_pod_has_minimal_privileges_and_writable_volumes() -> None:
    spec = deploy_files.read_kubernetes_deployment()["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    ((_, user),) = [i for i in deploy_files.read_final_image_stage() if i[0] == "USER"]
    assert f"{spec['securityContext']['runAsUser']}:{spec['securityContext']['runAsGroup']}" == user
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    mounts = {m["mountPath"]: m["name"] for m in container["volumeMounts"]}
    assert set(mounts.values()) == {v["name"] for v in spec["volumes"]}
    assert {"/tmp", "/var/lib/slackwater", "/etc/slackwater"} == set(mounts)
    assert {"memory"} <= set(container["resources"]["limits"])
    assert container["resources"]["requests"]["memory"] == container["resources"]["limits"]["memory"]


def test_resource_names_agree_across_manifests() -> None:
    documents = {d["kind"]: d for d in deploy_files.read_kubernetes_documents()}
    spec = deploy_files.read_kubernetes_deployment()["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert container["envFrom"] == [{"secretRef": {"name": documents["Secret"]["metadata"]["name"]}}]
    assert spec["serviceAccountName"] == documents["ServiceAccount"]["metadata"]["name"]
    kustomization = yaml.safe_load((DEPLOY / "kubernetes/kustomization.yaml").read_text())
    (generated,) = kustomization["configMapGenerator"]
    assert {"configMap": {"name": generated["name"]}, "name": "pipeline"} in spec["volumes"]
    assert generated["files"] == [Path(PIPELINE).name]
    assert kustomization["namespace"] == documents["Namespace"]["metadata"]["name"]
    assert [i["name"] for i in kustomization["images"]] == [container["image"]]
    for name in [*kustomization["resources"], *generated["files"]]:
        assert (DEPLOY / "kubernetes" / name).is_file()


def test_the_deployed_pipeline_is_valid_and_gets_its_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    file = DEPLOY / "kubernetes/pipeline.toml"
    names = set(re.findall(r"\$\{(\w+)\}", "\n".join(read_lines_without_comments(file))))
    (secret,) = [d for d in deploy_files.read_kubernetes_documents() if d["kind"] == "Secret"]
    assert names == set(secret["stringData"]) == set(SECRETS)
    assert names <= set(deploy_files.read_compose_services()["pipeline"]["environment"])
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    check_file(file)
    assert tomllib.loads(file.read_text())["spark"]["spark.driver.memory"] == "2g"


def read_lines_without_comments(file: Path) -> list[str]:
    return [line for line in file.read_text().splitlines() if not line.startswith("#")]


# -- the image ---------------------------------------------------------------------------------------------------------


def test_container_image_uses_existing_commands() -> None:
    words = deploy_files.read_image_command()
    assert words[:3] == ["tini", "--", "slackwater"]
    options = parse_command_options(words[3:])
    assert (str(options["file"]), options["metrics_port"], options["metrics_host"]) == (PIPELINE, int(PORT), "0.0.0.0")
    (prepares,) = [
        rest for name, rest in deploy_files.read_final_image_stage() if name == "RUN" and "slackwater prepare" in rest
    ]
    assert parse_command_options(re.findall(r"slackwater (prepare)", prepares)) is not None
    (exposed,) = [rest for name, rest in deploy_files.read_final_image_stage() if name == "EXPOSE"]
    assert exposed == PORT
    (check,) = [rest for name, rest in deploy_files.read_final_image_stage() if name == "HEALTHCHECK"]
    assert f"http://127.0.0.1:{PORT}{LIVE}" in check


def test_the_image_is_slim_and_its_user_is_not_root() -> None:
    instructions = deploy_files.read_dockerfile()
    assert {name for name, _ in instructions} <= {
        *("ARG", "FROM", "RUN", "COPY", "ENV", "USER", "WORKDIR", "VOLUME", "EXPOSE"),
        *("ENTRYPOINT", "CMD", "HEALTHCHECK"),
    }
    (base,) = [rest for name, rest in instructions if name == "ARG"]
    assert re.fullmatch(r"BASE=python:3\.\d+-slim-\w+", base)
    assert [rest for name, rest in instructions if name == "FROM"] == ["${BASE} AS build", "${BASE}"]
    for _, rest in (i for i in instructions if i[0] == "RUN" and "apt-get" in i[1]):
        assert "--no-install-recommends" in rest and "rm -rf /var/lib/apt/lists/*" in rest
    order = [name for name, _ in deploy_files.read_final_image_stage()]
    assert order.index("USER") > max(n for n, name in enumerate(order) if name in ("RUN", "COPY"))
    (user,) = [rest for name, rest in deploy_files.read_final_image_stage() if name == "USER"]
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", user)
    assert f"--uid {user.split(':')[0]} " in " ".join(
        rest for name, rest in deploy_files.read_final_image_stage() if name == "RUN"
    )


def test_the_image_copies_exactly_the_files_that_are_not_ignored() -> None:
    ignored = (DEPLOY / "docker/Dockerfile.dockerignore").read_text().splitlines()
    allowed = {line[1:] for line in ignored if line.startswith("!")}
    copied = {
        w
        for name, rest in deploy_files.read_dockerfile()
        if name == "COPY" and "--from" not in rest
        for w in rest.split()[:-1]
    }
    assert copied == allowed
    assert all((ROOT / name).exists() for name in copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["readme"] in copied
    (extras,) = re.findall(r"'\.\[([\w,]+)\]'", "\n".join(rest for _, rest in deploy_files.read_dockerfile()))
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    tag = yaml.safe_load((DEPLOY / "kubernetes/kustomization.yaml").read_text())["images"][0]["newTag"]
    assert tag == project["version"]
    assert deploy_files.read_compose_services()["pipeline"]["image"] == f"slackwater:{project['version']}"


def test_connector_jars_of_the_image_are_fetched_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = [rest for _, rest in deploy_files.read_dockerfile() if "slackwater prepare" in rest]
    names = re.findall(r"--with (\w+)", line)
    modules: list[str] = []
    monkeypatch.setattr(
        spark_jars, "fetch_jars", lambda _, module, *rest, **how: modules.append(module) or [Path(module)]
    )
    monkeypatch.setattr(spark_jars, "_is_cached", lambda home: False)
    assert sum(len(spark_jars.connector_jars(name)) for name in names) == len(modules)
    assert any("kafka-clients" in m for m in modules) and any("spark-avro" in m for m in modules)
    with pytest.raises(StartError, match=r"^found 'kafkas', expected one or both of: kafka, avro$"):
        spark_jars.connector_jars("kafkas")


# -- compose -----------------------------------------------------------------------------------------------------------


def test_the_compose_file_is_valid() -> None:
    assert [e.message for e in COMPOSE.iter_errors(deploy_files.read_compose_file())] == []


@pytest.mark.parametrize(("key", "value"), [("imagee", "x"), ("stop_grace_period", 2.5), ("ports", "9090:9090")])
def test_compose_schema_refuses_an_invalid_compose_file(key: str, value: Any) -> None:
    document = copy.deepcopy(deploy_files.read_compose_file())
    document["services"]["prometheus"][key] = value
    assert list(COMPOSE.iter_errors(document))


def test_mounted_files_exist_and_named_volumes_are_declared() -> None:
    home, named = DEPLOY / "compose", set(deploy_files.read_compose_file()["volumes"])
    for name, service in deploy_files.read_compose_services().items():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert (home / source).exists() if source.startswith(".") else source in named, (name, volume)
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), (name, port)
        for other in service.get("depends_on", []):
            assert other in deploy_files.read_compose_services()
        assert not service["image"].endswith("latest") and ":" in service["image"]
    build = deploy_files.read_compose_services()["pipeline"]["build"]
    assert ((home / build["context"]).resolve(), ROOT / build["dockerfile"]) == (ROOT, DEPLOY / "docker/Dockerfile")


def test_compose_uses_existing_commands() -> None:
    services = deploy_files.read_compose_services()
    options = parse_command_options(services["pipeline"]["command"])
    assert (str(options["file"]), options["metrics_port"]) == (PIPELINE, int(PORT))
    assert READY in services["pipeline"]["healthcheck"]["test"][-1]
    page = parse_command_options(services["page"]["command"])
    assert page["host"] == "0.0.0.0" and f":{page['port']}:" in services["page"]["ports"][0]
    assert "SLACKWATER_UI_TOKEN" in services["page"]["environment"]
    for service in (services["pipeline"], services["page"]):
        assert any(v.split(":")[1] == PIPELINE for v in service["volumes"])


def test_prometheus_scrapes_the_pipeline_at_an_allowed_host() -> None:
    services = deploy_files.read_compose_services()
    config = yaml.safe_load((DEPLOY / "compose/prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    (target,) = job["static_configs"][0]["targets"]
    host, port = target.split(":")
    options = parse_command_options(services["pipeline"]["command"])
    assert (port, int(port)) == (PORT, options["metrics_port"])
    assert host in services and host in options["allow_host"]
    rules = (DEPLOY / "prometheus/slackwater-alerts.yml").read_text()
    assert f'up{{job="{job["job_name"]}"}}' in rules
    (rule_file,) = config["rule_files"]
    mounts = dict(v.split(":")[1::-1] for v in services["prometheus"]["volumes"] if v.startswith("."))
    assert (DEPLOY / "compose" / mounts[str(Path(rule_file).parent)] / Path(rule_file).name).is_file()


def test_grafana_finds_the_dashboard_and_prometheus() -> None:
    home = DEPLOY / "compose/grafana"
    (source,) = yaml.safe_load((home / "datasources.yml").read_text())["datasources"]
    assert source["type"] == "prometheus" and source["isDefault"]
    assert source["url"].split("//")[1].split(":")[0] in deploy_files.read_compose_services()
    (provider,) = yaml.safe_load((home / "dashboards.yml").read_text())["providers"]
    mounts = dict(
        v.split(":")[1::-1] for v in deploy_files.read_compose_services()["grafana"]["volumes"] if v.startswith(".")
    )
    assert (DEPLOY / "compose" / mounts[provider["options"]["path"]] / "slackwater.json").is_file()
    assert all(path.startswith("/etc/grafana/provisioning/") for path in mounts if path != provider["options"]["path"])


# -- schedulers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dagster", "airflow"])
def test_dagster_and_airflow_files_use_existing_commands(name: str) -> None:
    text = (DEPLOY / name / "orders.py").read_text()
    compile(text, name, "exec")
    run, why = {
        "dagster": (r'start_command\("run", FILE, "(--[\w-]+)"', r'start_command\("why", FILE, "(--[\w-]+)"'),
        "airflow": (r'run "\{FILE\}" (--[\w-]+)', r'"why", FILE, "(--[\w-]+)"'),
    }[name]
    assert parse_command_options(["run", PIPELINE, *re.findall(run, text)])["available_now"] is True
    assert parse_command_options(["why", PIPELINE, *re.findall(why, text)])["as_json"] is True
