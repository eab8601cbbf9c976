"""ingest-bench: chaos and load testing of network ingest into JVM servers.

    workloads/*.toml      netem/*.toml      workloads/experiments/*.toml
            └──────────────────┴───────────────────┘
                               │ spec.load            Experiment        (pure)
                               │ plan.order           Plan of runs      (pure)  ─▶ plan.json
                               │ runner.run           for each run
                network link ─ target process ─ probes ─ load worker  ─▶ run.json, samples, raw/
     ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ below: repeatable, needs no root and no server ─ ─ ─ ─ ─
                   probes.read, store.samples ─▶ analysis.summary ─▶ report, gate

Imports run downward only (tests/test_architecture.py):

    cli      -> everything
    runner   -> serving footprint | targets network probes load | jvm store ledger system facts model errors
    serving  -> attaching | targets network jvm (a server that we start, or one that is there)
    attaching -> targets jvm (the server of a JVM that is there)
    footprint -> serving procedure (what a run may touch on a server that is not ours)
    targets, network, probes, load -> jvm system ledger model units errors, never each other (load also documents)
    documents -> records catalog model units errors (what is sent)
    report, gate -> analysis model units (report also data; gate also records errors)     analysis -> model units
    advise   -> store analysis model
    spec, plan, store, facts -> records data model units errors (facts also system)
    trials   -> system model errors (what a machine can do: for targets, network, probes and cli)
    records  -> rules rates urls | model units errors (what a value may be stands in the model's types)
    model    -> nothing
"""
