import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.StringJoiner;
import java.util.TreeMap;
import jdk.jfr.consumer.RecordedEvent;
import jdk.jfr.consumer.RecordedFrame;
import jdk.jfr.consumer.RecordedStackTrace;
import jdk.jfr.consumer.RecordedThread;

/**
 * When a thread of the server was busy with one thing that lasts, or waited, as spans with a cause.
 *
 * <p>What a thread did is known by samples of its stack: the innermost frame that is in a table names it. Samples of one
 * thread that say the same make one span, which begins and ends half a period before the first and after the last.
 */
final class StallSpans {
  /** The period of the samples, and the threshold of all waits: settings of probes/jfr.py. */
  private static final long PERIOD_US = 20_000;

  private static final long LEAST_NS = 20_000_000;
  /**
   * From one sample of a thread to its next. The recorder takes 5 threads at most each time, and comes late where there
   * is no CPU: in a flush of 3.9 s the samples of its thread were 54 ms apart in the mean (OpenSearch, 2 CPUs).
   */
  private static final long GAP_US = 250_000;

  private static final int MOST_SPANS = 200_000;

  private static final String SEGMENT = "Lucene flushed a segment";
  private static final String TRANSLOG = "the translog was synced";
  private static final String DIRECT = "a direct buffer was allocated";
  private static final String MEMTABLE = "Cassandra flushed a memtable";
  private static final String COMPACTION = "Cassandra compacted";
  private static final String ROLL = "Kafka rolled a log segment";
  private static final String LOG = "Kafka forced a log to disk";

  /** Work that lasts: class without its package, method, cause. */
  private static final String[][] WORK = {
    {"DocumentsWriterPerThread", "flush", SEGMENT},
    {"IndexWriter", "merge", "Lucene merged segments"},
    {"IndexWriter", "prepareCommitInternal", "Lucene committed"},
    {"InternalEngine", "refresh", "the index was refreshed"},
    {"Translog", "sync", TRANSLOG},
    {"Translog", "ensureSynced", TRANSLOG},
    {"TranslogWriter", "syncUpTo", TRANSLOG},
    {"ByteBuffer", "allocateDirect", DIRECT},
    {"Memtable", "writeSortedContents", MEMTABLE},
    {"Memtable$FlushRunnable", "writeSortedContents", MEMTABLE},
    {"Flushing$FlushRunnable", "writeSortedContents", MEMTABLE},
    {"CompactionManager", "doCompaction", COMPACTION},
    {"CompactionTask", "runMayThrow", COMPACTION},
    {"UnifiedLog", "roll", ROLL},
    {"LocalLog", "roll", ROLL},
    {"UnifiedLog", "flush", LOG},
    {"LogSegment", "flush", LOG},
  };

  /** Where a server holds a thread back by intent; a wait in such a frame has this cause whatever it waits by. */
  private static final String[][] HELD_BACK = {
    {"DocumentsWriterStallControl", "waitIfStalled", "Lucene held writers back until segments were flushed"},
    {"InternalEngine$IndexThrottle", "acquireThrottle", "indexing was throttled until merges caught up"},
    {"MemtableAllocator$SubAllocator", "allocate", "a write waited for room in the memtables"},
    {"AbstractCommitLogSegmentManager", "awaitAvailableSegment", "a write waited for a segment of the commit log"},
    {"Bits", "reserveMemory", "a thread waited for room for a direct buffer"},
  };

  /** A thread that is parked here waits for something to do. */
  private static final String[][] IDLE = {
    {"ThreadPoolExecutor", "getTask"},
    {"ForkJoinPool", "awaitWork"},
    {"ForkJoinPool", "runWorker"},
    {"SingleThreadEventExecutor", "takeTask"},
    {"SEPWorker", "run"},
    {"TimeoutBlockingWaitStrategy", "waitFor"},
    {"BlockingWaitStrategy", "waitFor"},
  };

  private static final Map<String, String> FILES = Map.of(
      "jdk.FileForce", "a file was forced to disk",
      "jdk.FileWrite", "a write to a file was slow",
      "jdk.FileRead", "a read of a file was slow");
  private static final List<String> QUEUE_TAKES =
      List.of("take", "takeFirst", "takeLast", "poll", "pollFirst", "pollLast", "xfer", "transfer", "awaitMatch");
  private static final String LOCK = "a thread waited for a lock";
  private static final String OTHER = "a thread waited for another one";
  private static final String NONE = "";

  private final Map<String, List<String[]>> work = byMethod(WORK);
  private final Map<String, List<String[]>> heldBack = byMethod(HELD_BACK);
  private final Map<String, List<String[]>> idle = byMethod(IDLE);

  /** Of each thread: microseconds, and below them the number of the cause. */
  private final Map<String, Samples> samples = new TreeMap<>();

  /** By event and thread: begin and end. */
  private final Map<String, Map<String, List<long[]>>> files = new TreeMap<>();

  /** The names of threads by the operating system's numbers. */
  private final Map<Long, String> threads = new TreeMap<>();

  private final List<String> causes = new ArrayList<>(List.of(NONE));
  private final List<String> spans = new ArrayList<>();
  private final long startNs;
  private final long endNs;
  private long sampled;
  private long lost;

  private static final class Samples {
    long[] values = new long[64];
    int count;

    void add(long value) {
      if (count == values.length) {
        values = Arrays.copyOf(values, 2 * count);
      }
      values[count++] = value;
    }
  }

  StallSpans(long startNs, long endNs) {
    this.startNs = startNs;
    this.endNs = endNs;
  }

  void take(String type, RecordedEvent event, long end) {
    switch (type) {
      case "jdk.ExecutionSample":
        sample(event, end);
        break;
      case "jdk.JavaMonitorEnter":
        waited(event, end, LOCK);
        break;
      case "jdk.JavaMonitorWait":
      case "jdk.ThreadSleep":
        waited(event, end, NONE);
        break;
      case "jdk.ThreadPark":
        waited(event, end, park(event));
        break;
      case "jdk.FileForce":
      case "jdk.FileWrite":
      case "jdk.FileRead":
        files.computeIfAbsent(type, key -> new TreeMap<>())
            .computeIfAbsent(name(event.getThread()), key -> new ArrayList<>())
            .add(new long[] {end - event.getDuration().toNanos(), end});
        break;
      case "jdk.SafepointBegin":
        span("threads were slow to reach a safepoint", "", event, end);
        break;
      case "jdk.ExecuteVMOperation":
        if (event.getBoolean("safepoint")) {
          span("JVM operation " + event.getString("operation"), "", event, end);
        }
        break;
      default:
        break;
    }
  }

  private void sample(RecordedEvent event, long end) {
    sampled++;
    String cause = telling(event.getStackTrace(), heldBack);
    cause = cause == null ? telling(event.getStackTrace(), work) : cause;
    int number = causes.indexOf(cause == null ? NONE : cause);
    if (number < 0) {
      number = causes.size();
      causes.add(cause);
    }
    samples.computeIfAbsent(name(event.getThread("sampledThread")), key -> new Samples()).add(end / 1000 << 8 | number);
  }

  private void waited(RecordedEvent event, long end, String otherwise) {
    if (event.getDuration().toNanos() < LEAST_NS) {
      return;
    }
    String cause = telling(event.getStackTrace(), heldBack);
    cause = cause == null ? otherwise : cause;
    if (!cause.equals(NONE)) {
      span(cause, name(event.getThread()), event, end);
    }
  }

  /** A lock, or a signal of another thread; nothing where the thread has nothing to do. */
  private String park(RecordedEvent event) {
    RecordedStackTrace trace = event.getStackTrace();
    String thread = name(event.getThread());
    if (trace == null || thread.equals("main") || thread.contains("keepAlive") || telling(trace, idle) != null) {
      return NONE;
    }
    String cause = OTHER;
    boolean isServers = false;
    for (RecordedFrame frame : trace.getFrames()) {
      if (!frame.isJavaFrame()) {
        continue;
      }
      String owner = frame.getMethod().getType().getName();
      String method = frame.getMethod().getName();
      if (owner.startsWith("java.util.concurrent.locks.") && (method.equals("lock") || method.equals("lockInterruptibly"))) {
        cause = LOCK;
      }
      boolean isQueue = owner.matches("java\\.util\\.concurrent\\.[A-Za-z]*(Queue|Deque)(\\$.*)?");
      if (isQueue && QUEUE_TAKES.contains(method)) {
        return NONE;
      }
      isServers |= !JfrReader.isJdk(owner);
    }
    return isServers ? cause : NONE;
  }

  private void span(String cause, String thread, RecordedEvent event, long end) {
    span(cause, thread, end - event.getDuration().toNanos(), end);
  }

  private void span(String cause, String thread, long start, long end) {
    if (end < startNs || start >= endNs) {
      return;
    }
    if (spans.size() == MOST_SPANS) {
      lost++;
      return;
    }
    spans.add("[" + JfrReader.quote(cause) + "," + JfrReader.quote(thread) + "," + start + "," + end + "]");
  }

  /** The cause of the innermost frame that has one. */
  private static String telling(RecordedStackTrace trace, Map<String, List<String[]>> table) {
    if (trace == null) {
      return null;
    }
    for (RecordedFrame frame : trace.getFrames()) {
      if (!frame.isJavaFrame()) {
        continue;
      }
      List<String[]> found = table.get(frame.getMethod().getName());
      if (found == null) {
        continue;
      }
      String owner = frame.getMethod().getType().getName();
      for (String[] row : found) {
        if (owner.endsWith(row[0]) && (owner.length() == row[0].length() || owner.charAt(owner.length() - row[0].length() - 1) == '.')) {
          return row[row.length - 1];
        }
      }
    }
    return null;
  }

  private static Map<String, List<String[]>> byMethod(String[][] table) {
    Map<String, List<String[]>> found = new HashMap<>();
    for (String[] row : table) {
      found.computeIfAbsent(row[1], key -> new ArrayList<>()).add(row);
    }
    return found;
  }

  private String name(RecordedThread thread) {
    if (thread == null) {
      return "";
    }
    String name = thread.getJavaName() == null ? String.valueOf(thread.getOSName()) : thread.getJavaName();
    threads.put(thread.getOSThreadId(), name);
    return name;
  }

  private void spansOfSamples() {
    samples.forEach((thread, found) -> {
      // The recorder's buffers are in no order.
      Arrays.sort(found.values, 0, found.count);
      int first = 0;
      for (int next = 1; next <= found.count; next++) {
        long begun = found.values[first];
        long last = found.values[next - 1];
        boolean goesOn = next < found.count && (found.values[next] & 255) == (begun & 255)
            && (found.values[next] >> 8) - (last >> 8) <= GAP_US;
        if (goesOn) {
          continue;
        }
        if ((begun & 255) != 0) {
          span(causes.get((int) (begun & 255)), thread, ((begun >> 8) - PERIOD_US / 2) * 1000, ((last >> 8) + PERIOD_US / 2) * 1000);
        }
        first = next;
      }
    });
  }

  /** The events that are not to be believed: a thread is in one of them at a time, and in theirs it is in two. */
  private List<String> spansOfFiles() {
    List<String> wrong = new ArrayList<>();
    files.forEach((type, threads) -> {
      boolean isWrong = false;
      for (List<long[]> found : threads.values()) {
        found.sort((left, right) -> Long.compare(left[0], right[0]));
        for (int next = 1; next < found.size(); next++) {
          isWrong |= found.get(next)[0] < found.get(next - 1)[1];
        }
      }
      if (isWrong) {
        wrong.add(JfrReader.quote(type));
      } else {
        threads.forEach((thread, found) -> found.forEach(one -> span(FILES.get(type), thread, one[0], one[1])));
      }
    });
    return wrong;
  }

  String json() {
    spansOfSamples();
    List<String> wrong = spansOfFiles();
    StringJoiner numbered = new StringJoiner(",");
    threads.forEach((number, name) -> numbered.add("\"" + number + "\":" + JfrReader.quote(name)));
    return "{\"spans\":[" + String.join(",", spans) + "],\"wrong\":[" + String.join(",", wrong) + "],\"threads\":{" + numbered + "},\"samples\":" + sampled + ",\"lost\":" + lost + "}";
  }
}
