"""How tests start JVMs of Spark: with the Java that has a class archive, and with options for short runs."""

from __future__ import annotations

from pathlib import Path

import pyspark

from slackwater.spark.sessions import jvm_launch

SPARK = Path(pyspark.__file__).parent
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_JAVA = jvm_launch.find_fast_java() or jvm_launch.find_default_java()
EXECUTABLE = str(_JAVA.executable) if _JAVA else "java"
JAVA_HOME = {"JAVA_HOME": str(_JAVA.home)} if _JAVA else {}
ARCHIVE = jvm_launch.class_archive_options(_JAVA) if _JAVA else ""
# Java uses the archive only with the class path for which it was created.
CLASS_PATH = ":".join([f"{SPARK}/conf", *map(str, SPARK.glob("jars/slf4j-api-*.jar")), f"{SPARK}/jars/*"])
