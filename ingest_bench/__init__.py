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
    runner   -> earlier fault_stage serving footprint why_failed wires | targets network probes load | jvm store ledger
    earlier  -> fault_stage parts procedure serving why_failed | load probes store (what a server finds in its files)
    fault_stage -> serving faults | jvm store (what the faults of a run act on)
    why_failed -> serving | probes jvm store errors (what a server's nodes say when a run ends early)
    wires    -> network store (what is seen of a run's links, for runner, analyse and conduct)
    serving  -> addresses attaching real_path | targets network host jvm (a server that we start, or one that is there)
    real_path -> attaching | network (the real interface that leads to a server that runs already)
    addresses -> attaching targets (where a server is that runs already)
    attaching -> targets jvm (the server of a JVM that is there)
    footprint -> serving parts (what a run may touch on a server that is not ours)
    procedure -> track_procedure parts marks | targets documents load (what a run asks and sends, in order)
    track_procedure -> downloads parts marks | targets documents load (a track's steps)
    resumed  -> units errors (a file over HTTP that goes on where it broke off)
    downloads -> resumed documents jvm (corpora into the cache, checked)     parts -> load (what a procedure is made of)
    marks    -> catalog (our mark in what a run makes on a server that is not ours)
    targets, network, host, probes, load -> jvm system ledger model units errors, never each other
    load     -> protocols documents (when and by whom it is sent)
    protocols -> documents idl records model (how it goes over the wire, and what an answer means)
    idl      -> (interfaces of servers that speak Thrift or CQL: for protocols and targets)
    documents -> records catalog model units errors (what is sent)
    report, gate -> analysis model units (report also data; gate also records errors)
    analysis -> thresholds | model units
    advise   -> store analysis model
    nights   -> analyse analysis store visible errors (the results below a folder, as nights)
    spec, plan, store, facts -> records data model units errors (facts also system; store its files)
    key_paths -> records catalog model (where a key of an experiment stands: for spec)
    naming   -> errors (what a folder of ours may be called: for store)
    whole_files -> errors (JSON of ours that is whole or damaged: for store and calibration)
    trials   -> system model errors (what a machine can do: for targets, network, probes and cli)
    files    -> (what a user's file holds: for all that read one)
    fingerprints -> files records model errors (what the files of a plan hold: whether runs are of the same)
    nearest_rank -> (percentiles: for analysis, probes, network and report)
    records  -> rules rates thresholds urls | model units errors (what a value may be stands in the model's types)
    model    -> nothing
"""
