"""What is sent: documents that are made, files and tracks of a user's own, and the bodies of requests.

A body goes from `source.open_source(…).for_user(n)` to the user that sends it; a protocol (`protocols/`) makes it:

    source.py      where a worker's bodies come from: one of the four below, shared out to its users
      synthetic.py   documents of a workload, in seeded blocks; generate/ makes the values of their fields
      corpus.py      a file of the user's, looked through before the start
      tracks/        Rally tracks and OpenSearch Benchmark workloads: which files, how many, with which ids
      lines.py       the lines of a file, plain or packed, whole or a worker's part of it
    pool.py        bodies in memory, sent again and again          stream.py   of a file that is larger
    actions.py     ready bulk files as a source: lines to items    ids.py      ids, written into a body in place
    body.py        a body, which knows its items
    export.py      what a person wants to see of a workload
"""
