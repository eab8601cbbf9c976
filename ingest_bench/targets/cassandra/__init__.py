"""Cassandra: 0.7.4 and 0.7.5, which speak Thrift, and 5.0.9 and 6.0-alpha2, which speak CQL."""
