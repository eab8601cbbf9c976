"""Documents and request bodies: generated, from files, from Rally and OpenSearch Benchmark tracks."""
