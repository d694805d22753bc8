"""The command line: one module per command or group of commands. These modules only format and print what other
packages return.

May import: config, connectors, core, dead_letters, engine, errors, evolution, explain, health_probes, logging,
maintenance, metrics, observe, operators, query, runner, scaffold, secret_masking, spark, state, testing, ui, watermark, web.
"""
