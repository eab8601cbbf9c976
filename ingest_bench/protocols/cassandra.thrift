// The part of Cassandra's Thrift interface 19.4.0 (0.7.0 to 0.7.5) that is spoken here. Numbers, names and types are
// those of interface/cassandra.thrift in its source; what is left out is optional, or never sent.

enum ConsistencyLevel { ONE = 1 }

struct Column { 1: required binary name, 2: required binary value, 3: required i64 timestamp }
struct ColumnOrSuperColumn { 1: optional Column column }
struct Mutation { 1: optional ColumnOrSuperColumn column_or_supercolumn }

struct ColumnParent { 3: required string column_family }
struct SliceRange { 1: required binary start, 2: required binary finish, 3: required bool reversed = 0, 4: required i32 count = 100 }
struct SlicePredicate { 2: optional SliceRange slice_range }
struct KeyRange { 1: optional binary start_key, 2: optional binary end_key, 5: required i32 count = 100 }
struct KeySlice { 1: required binary key, 2: required list<ColumnOrSuperColumn> columns }

struct CfDef {
  1: required string keyspace,
  2: required string name,
  21: optional i32 memtable_flush_after_mins,
  22: optional i32 memtable_throughput_in_mb,
  23: optional double memtable_operations_in_millions,
}
struct KsDef {
  1: required string name,
  2: required string strategy_class,
  4: required i32 replication_factor,
  5: required list<CfDef> cf_defs,
}

exception InvalidRequestException { 1: required string why }
exception UnavailableException { }
exception TimedOutException { }

service Cassandra {
  void set_keyspace(1: required string keyspace) throws (1: InvalidRequestException ire),
  void batch_mutate(1: required map<binary, map<string, list<Mutation>>> mutation_map, 2: required ConsistencyLevel consistency_level)
    throws (1: InvalidRequestException ire, 2: UnavailableException ue, 3: TimedOutException te),
  list<KeySlice> get_range_slices(1: required ColumnParent column_parent, 2: required SlicePredicate predicate, 3: required KeyRange range, 4: required ConsistencyLevel consistency_level)
    throws (1: InvalidRequestException ire, 2: UnavailableException ue, 3: TimedOutException te),
  string describe_version(),
  string describe_cluster_name(),
  string system_add_keyspace(1: required KsDef ks_def) throws (1: InvalidRequestException ire),
}
