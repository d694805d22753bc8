"""OpenLineage datasets for a pipeline's sources and targets: namespace and name, by OpenLineage's naming rules."""

from __future__ import annotations

from slackwater.config.connector_description import CONNECTORS, Dataset
from slackwater.config.pipeline import Pipeline, resolve_connection
from slackwater.config.source import Lookup, Source
from slackwater.config.target import Target
from slackwater.secrets import mask_secrets


def source_datasets(pipeline: Pipeline, source: Source | Lookup) -> list[Dataset]:
    """Return the datasets that a source reads, one per topic; none for a DataFrame."""
    connection = resolve_connection(source.connection, pipeline.connections)
    if connection is None or source.query is None:
        return []
    return [_safe(dataset) for dataset in CONNECTORS[connection.kind].source_datasets(connection, source.query)]


def target_dataset(pipeline: Pipeline, target: Target | None) -> Dataset | None:
    """Return the dataset that a target writes; None if the target is not a dataset, such as the console."""
    connection = None if target is None else resolve_connection(target.connection, pipeline.connections)
    if target is None or connection is None:
        return None
    dataset = CONNECTORS[connection.kind].target_dataset(connection, target)
    return None if dataset is None else _safe(dataset)


def _safe(dataset: Dataset) -> Dataset:
    return mask_secrets(dataset[0]), mask_secrets(dataset[1])
