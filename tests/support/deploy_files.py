"""Readers of the files in deploy/: the Dockerfile instructions, the Kubernetes documents and the compose file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
PIPELINE = "/etc/slackwater/pipeline.toml"
PORT = "9187"


def read_dockerfile() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile, without comments and with continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", (DEPLOY / "docker/Dockerfile").read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [(name, rest) for name, _, rest in (line.strip().partition(" ") for line in lines if line.strip())]


def read_final_image_stage() -> list[tuple[str, str]]:
    all_instructions = read_dockerfile()
    return all_instructions[max(n for n, (name, _) in enumerate(all_instructions) if name == "FROM") :]


def read_image_environment() -> dict[str, str]:
    """Return the environment variables that the image sets, except PATH."""
    pairs = [word.split("=", 1) for name, rest in read_final_image_stage() if name == "ENV" for word in rest.split()]
    return {name: value for name, value in pairs if name != "PATH"}


def read_image_command() -> list[str]:
    """Return the command that the image runs: the entry point with the arguments."""
    ((_, entry),) = [i for i in read_final_image_stage() if i[0] == "ENTRYPOINT"]
    ((_, arguments),) = [i for i in read_final_image_stage() if i[0] == "CMD"]
    return [*json.loads(entry), *json.loads(arguments)]


def read_kubernetes_documents() -> list[dict[str, Any]]:
    files = ("slackwater.yaml", "secret.example.yaml")
    return [d for name in files for d in yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text())]


def read_kubernetes_deployment() -> dict[str, Any]:
    (document,) = [d for d in read_kubernetes_documents() if d["kind"] == "Deployment"]
    return document


def read_compose_services() -> dict[str, Any]:
    """Return the services of the compose file, with aliases resolved."""
    return read_compose_file()["services"]


def read_compose_file() -> dict[str, Any]:
    return yaml.safe_load((DEPLOY / "compose/compose.yaml").read_text())
