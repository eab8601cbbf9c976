"""ingest-bench: chaos and load testing of network ingest into JVM servers.

    workloads/*.toml      netem/*.toml      workloads/experiments/*.toml
            └──────────────────┴───────────────────┘
                               │ experiment.spec      Experiment        (pure)
                               │ experiment.order     Plan of runs      (pure)  ─▶ plan.json, facts.json
                               │ lab.campaign         for each run, lab.runner:
            network link ─ server process ─ probes ─ load worker ─ faults   ─▶ run.json, samples, raw/
     ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─ below: repeatable, needs no root and no server ─ ─ ─ ─ ─
            probes.vantage, results.layout ─▶ analysis.run.summary ─▶ report, report.gate

The rooms, each with its words on its front page:

    errors units system trials nearest_rank front_page
                 the ground: system starts children, trials finds out what a machine can do
    model        the nouns: frozen records
    inputs       what comes from a user: values, files, texts and addresses, read or refused in one sentence
    experiment   TOML to plan
    results      the layout of a results folder, and the facts of the machine
    documents    what is sent      protocols  how it goes over the wire      load  when and by whom
    targets      one file a server      jvm  Java for everybody      idl  interfaces of Thrift and CQL
    network      plan (pure), act, measure      host  settings and shares of the machine      ledger  undo
    faults       one file a fault      probes  one instrument a file
    lab          carries a plan out: campaign, runner, steps of a run, its server
    analysis     from readings to summaries and comparisons (pure)      report  to tables, pictures, pages and the gate
    cli          arguments in, exit code out

Imports run downward only (tests/test_architecture.py holds the whole list):

    cli          -> everything
    lab          -> report analysis | targets network host faults probes load | jvm documents results experiment inputs
    faults       -> network host experiment (a layer of a link is made of the link's own verbs)
    targets, network, host, probes, load -> jvm ledger system inputs, never each other
    load         -> protocols documents experiment          protocols -> documents idl          documents -> experiment
    report       -> analysis inputs
    results, experiment, analysis, ledger -> inputs
    inputs       -> model units errors          model -> nothing
"""
