"""An Iceberg REST catalog for tests, on loopback: the reference server of Apache Iceberg, from Maven.

with IcebergRestCatalog.started() as catalog, FaultyProxy.start_proxy(catalog.port) as proxy:
    load_catalog("default", **catalog.options(proxy.port))
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tests.support.servers.maven_downloads import fetch_jars

from slackwater.testing.services import Process, free_port


@dataclass
class IcebergRestCatalog:
    """The server, with its tables in a temporary directory. The directory is removed when the server stops."""

    directory: Path
    port: int
    process: Process
    VERSION: ClassVar[str] = "1.9.2"
    IVY: ClassVar[str] = f"""<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="slackwater" module="rest-catalog"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org="org.apache.iceberg" name="iceberg-core" rev="{VERSION}" conf="default->default">
      <artifact name="iceberg-core" type="jar"/>
      <artifact name="iceberg-core" type="jar" m:classifier="tests"/>
    </dependency>
    <dependency org="org.apache.iceberg" name="iceberg-open-api" rev="{VERSION}" transitive="false" conf="default->master">
      <artifact name="iceberg-open-api" type="jar" m:classifier="test-fixtures"/>
    </dependency>
    <dependency org="org.eclipse.jetty" name="jetty-servlet" rev="11.0.25" conf="default->default"/>
    <dependency org="org.xerial" name="sqlite-jdbc" rev="3.50.3.0" conf="default->default"/>
  </dependencies>
</ivy-module>
"""

    @classmethod
    @contextmanager
    def started(cls) -> Iterator[IcebergRestCatalog]:
        """Yield a running server and stop it afterwards."""
        import pyspark

        jars = fetch_jars(f"iceberg-rest-catalog-{cls.VERSION}", cls.IVY)
        hadoop = sorted((Path(pyspark.__file__).parent / "jars").glob("hadoop-client-*.jar"))  # reads and writes files
        directory = Path(tempfile.mkdtemp(prefix="slackwater-iceberg-"))
        (directory / "warehouse").mkdir()
        port = free_port()
        settings = {
            "CATALOG_WAREHOUSE": f"file://{directory}/warehouse",
            "CATALOG_URI": f"jdbc:sqlite:{directory}/catalog.db",
            "CATALOG_IO__IMPL": "org.apache.iceberg.hadoop.HadoopFileIO",
            "CATALOG_REST_PORT": str(port),
        }
        command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", ":".join(map(str, [*jars, *hadoop]))]
        command.append("org.apache.iceberg.rest.RESTCatalogServer")
        process = Process(command, directory / "log", {"env": {**os.environ, **settings}})
        catalog = cls(directory, port, process)
        try:
            process.start()
            process.wait_for_http("the Iceberg catalog", f"http://127.0.0.1:{port}/v1/config")
            yield catalog
        finally:
            process.stop(signal.SIGTERM)
            shutil.rmtree(directory, ignore_errors=True)

    def connection_options(self, port: int | None = None) -> dict[str, str]:
        """Return the client options. `port`: the port of a proxy, or by default the server's own."""
        return {"uri": f"http://127.0.0.1:{port or self.port}"}
