"""What is sent: documents that are made, files and tracks of a user's own, and the bodies of requests.

generate/        values of fields, by kind        synthetic.py   documents of a workload, in seeded blocks
corpus.py        a file that was checked          lines.py       its lines, plain or packed
tracks/          Rally and OpenSearch Benchmark   ids.py         ids that are written into bodies in place
body.py          the body of one bulk request     source.py      bodies from a corpus
export.py        what a person wants to see of a workload
"""
