"""Rally tracks and OpenSearch Benchmark workloads, read in their own format. No code of a track is executed."""
