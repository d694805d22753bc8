"""A schema registry for tests: Apicurio, downloaded from Maven. It listens on loopback and offers the API of Confluent.

with SchemaRegistry.started() as registry:
    registry.register_schema("clicks-value", '{"type": "record", …}', "AVRO")
"""

from __future__ import annotations

import json
import shutil
import signal
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tests.support.servers.maven_downloads import fetch_program

from slackwater.testing.services import Process, free_port


@dataclass
class SchemaRegistry:
    """The server, which stores schemas in memory. `url`: the value for `schema_registry`."""

    url: str
    process: Process
    VERSION: ClassVar[str] = "2.6.13.Final"
    IVY: ClassVar[str] = f"""<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="slackwater" module="schema-registry"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org="io.apicurio" name="apicurio-registry-app" rev="{VERSION}" transitive="false" conf="default->master">
      <artifact name="apicurio-registry-app" type="tar.gz" ext="tar.gz" m:classifier="all"/>
    </dependency>
  </dependencies>
</ivy-module>
"""

    @classmethod
    @contextmanager
    def started(cls) -> Iterator[SchemaRegistry]:
        """Yield a running server and stop it afterwards."""
        home = fetch_program(f"schema-registry-{cls.VERSION}", cls.IVY)
        directory, port = Path(tempfile.mkdtemp(prefix="slackwater-registry-")), free_port()
        settings = {"quarkus.http.host": "127.0.0.1", "quarkus.http.port": port, "java.io.tmpdir": directory}
        command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        command += [f"-D{name}={value}" for name, value in settings.items()]
        command += ["-jar", str(home / f"apicurio-registry-app-{cls.VERSION}-runner.jar")]
        registry = cls(f"http://127.0.0.1:{port}/apis/ccompat/v7", Process(command, directory / "log"))
        try:
            registry.process.start()
            registry.process.wait_for_http("the schema registry", f"{registry.url}/subjects")
            yield registry
        finally:
            registry.process.stop(signal.SIGTERM)
            shutil.rmtree(directory, ignore_errors=True)

    def register_schema(self, subject: str, schema: str, kind: str, references: Sequence[dict[str, Any]] = ()) -> int:
        """Register a new version of a subject, and return the id of its schema. `kind`: AVRO or JSON."""
        body = {"schema": schema, "schemaType": kind, "references": list(references)}
        request = urllib.request.Request(
            f"{self.url}/subjects/{subject}/versions",
            json.dumps(body).encode(),
            {"Content-Type": "application/vnd.schemaregistry.v1+json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(json.load(answer)["id"])
