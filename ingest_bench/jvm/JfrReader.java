import java.io.File;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Instant;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import jdk.jfr.consumer.RecordedEvent;
import jdk.jfr.consumer.RecordedFrame;
import jdk.jfr.consumer.RecordedObject;
import jdk.jfr.consumer.RecordedStackTrace;
import jdk.jfr.consumer.RecordingFile;

/**
 * Flight recordings as one JSON object on stdout, and their socket reads as fixed records in a file.
 *
 * <p>Usage: JfrReader SINCE_NS START_NS END_NS PORTS READS_FILE RECORDING... Times are CLOCK_REALTIME and an event
 * belongs to the window by its end; one that ended before SINCE_NS does not count at all: a JVM that ran before gives
 * whole chunks. PORTS are the peer's ("1,2,3"; "*": all). Memory does not grow with reads and allocations: only
 * collections and distinct sizes and sites are kept. Runs on Java 11 and later, and reads recordings of its own Java
 * and older.
 */
public final class JfrReader {
  /** Sizes below this are counted in an array, larger ones in a map. */
  private static final int DENSE = 1 << 20;

  private static final int MAX_SITES = 20_000;
  private static final int RECORD_BYTES = 16;
  private static final String TOO_DEEP = "(stack too deep)";
  private static final String[] JDK = {"java.", "javax.", "jdk.", "sun.", "com.sun."};

  /** Count, sum, least and greatest of a stream of numbers. */
  private static final class Sizes {
    long count;
    long total;
    long min = Long.MAX_VALUE;
    long max;

    void add(long value) {
      count++;
      total += value;
      min = Math.min(min, value);
      max = Math.max(max, value);
    }

    String json() {
      return "{\"count\":" + count + ",\"total\":" + total + ",\"min\":" + (count == 0 ? 0 : min) + ",\"max\":" + max + "}";
    }
  }

  private final long sinceNs;
  private final long startNs;
  private final long endNs;
  private final BitSet ports = new BitSet(1 << 16);
  private final FileChannel readsFile;
  private final ByteBuffer readsBuffer = ByteBuffer.allocate(RECORD_BYTES << 12).order(ByteOrder.LITTLE_ENDIAN);

  private final Sizes allReads = new Sizes();
  private final Sizes windowReads = new Sizes();
  private final Sizes otherPorts = new Sizes();
  private long emptyReads;
  private long endsOfStream;
  private final long[] dense = new long[DENSE];
  private final Map<Long, long[]> sparse = new TreeMap<>();

  private final Map<String, Sizes> allocations = new TreeMap<>();
  private final Map<String, long[]> sites = new HashMap<>();

  private final List<String> pauses = new ArrayList<>();
  private final List<String> collections = new ArrayList<>();
  private final List<String> heap = new ArrayList<>();
  private final List<String> direct = new ArrayList<>();
  private final List<String> failures = new ArrayList<>();

  private final Map<String, long[]> types = new TreeMap<>();
  /** Events that this Java could have written: the lack of one that it does not know means nothing. */
  private final TreeSet<String> known = new TreeSet<>();

  private final List<String> files = new ArrayList<>();
  private long events;
  private long lostBytes;
  private long firstNs = Long.MAX_VALUE;
  private long lastNs;

  private JfrReader(String since, String start, String end, String portList, String reads) throws IOException {
    sinceNs = Long.parseLong(since);
    startNs = Long.parseLong(start);
    endNs = Long.parseLong(end);
    if (portList.equals("*")) {
      ports.set(0, 1 << 16);
    } else {
      for (String port : portList.split(",")) {
        if (!port.isEmpty()) {
          ports.set(Integer.parseInt(port));
        }
      }
    }
    readsFile = FileChannel.open(Path.of(reads), StandardOpenOption.CREATE, StandardOpenOption.WRITE,
        StandardOpenOption.TRUNCATE_EXISTING);
  }

  public static void main(String[] arguments) throws IOException {
    JfrReader reader = new JfrReader(arguments[0], arguments[1], arguments[2], arguments[3], arguments[4]);
    for (int i = 5; i < arguments.length; i++) {
      reader.readFile(arguments[i]);
    }
    reader.flushReads();
    reader.readsFile.close();
    PrintStream out = new PrintStream(System.out, false, "UTF-8");
    out.println(reader.json());
    out.flush();
  }

  /** A file that ends in the middle gives what could be read, and its error. */
  private void readFile(String name) {
    long before = events;
    String error = "null";
    try (RecordingFile file = new RecordingFile(Path.of(name))) {
      while (file.hasMoreEvents()) {
        take(file.readEvent());
      }
      file.readEventTypes().forEach(type -> known.add(type.getName()));
    } catch (IOException | RuntimeException | Error problem) {
      error = quote(problem.toString());
    }
    files.add("{\"file\":" + quote(name) + ",\"bytes\":" + new File(name).length() + ",\"events\":" + (events - before)
        + ",\"error\":" + error + "}");
  }

  private void take(RecordedEvent event) throws IOException {
    long end = nanos(event.getEndTime());
    if (end < sinceNs) {
      return;
    }
    events++;
    String type = event.getEventType().getName();
    types.computeIfAbsent(type, key -> new long[1])[0]++;
    firstNs = Math.min(firstNs, end);
    lastNs = Math.max(lastNs, end);
    switch (type) {
      case "jdk.SocketRead":
        read(event, end);
        break;
      case "jdk.ObjectAllocationOutsideTLAB":
        allocation(event, end, "outside", event.getLong("allocationSize"));
        break;
      case "jdk.ObjectAllocationInNewTLAB":
        allocation(event, end, "tlab", event.getLong("tlabSize"));
        break;
      case "jdk.GCPhasePause":
        pauses.add("[" + event.getInt("gcId") + "," + end + "," + event.getDuration().toNanos() + ","
            + quote(event.getString("name")) + "]");
        break;
      case "jdk.GarbageCollection":
        collections.add("[" + event.getInt("gcId") + "," + end + "," + event.getDuration("sumOfPauses").toNanos() + ","
            + quote(event.getString("name")) + "," + quote(event.getString("cause")) + "]");
        break;
      case "jdk.GCHeapSummary":
        heap.add("[" + event.getInt("gcId") + "," + end + "," + quote(event.getString("when")) + ","
            + event.getLong("heapUsed") + "," + event.<RecordedObject>getValue("heapSpace").getLong("committedSize") + "]");
        break;
      case "jdk.DirectBufferStatistics":
        direct.add("[" + end + "," + event.getLong("count") + "," + event.getLong("memoryUsed") + ","
            + event.getLong("totalCapacity") + "]");
        break;
      case "jdk.PromotionFailed":
      case "jdk.EvacuationFailed":
      case "jdk.ConcurrentModeFailure":
      case "jdk.ZAllocationStall":
        failures.add("[" + end + "," + quote(type) + "]");
        break;
      case "jdk.DataLoss":
        lostBytes += event.getLong("amount");
        break;
      default:
        break;
    }
  }

  /** No bytes: the socket had nothing (the buffer was allocated all the same). End of stream: written as -1. */
  private void read(RecordedEvent event, long end) throws IOException {
    long bytes = event.getLong("bytesRead");
    int port = event.getInt("port");
    if (!ports.get(port & 0xffff)) {
      otherPorts.add(Math.max(bytes, 0));
      return;
    }
    if (event.getBoolean("endOfStream") || bytes < 0) {
      endsOfStream++;
      bytes = -1;
    } else if (bytes == 0) {
      emptyReads++;
    } else {
      allReads.add(bytes);
      if (inWindow(end)) {
        windowReads.add(bytes);
        if (bytes < DENSE) {
          dense[(int) bytes]++;
        } else {
          sparse.computeIfAbsent(bytes, key -> new long[1])[0]++;
        }
      }
    }
    if (readsBuffer.remaining() < RECORD_BYTES) {
      flushReads();
    }
    readsBuffer.putLong(end).putInt((int) bytes).putInt(port);
  }

  private void flushReads() throws IOException {
    readsBuffer.flip();
    while (readsBuffer.hasRemaining()) {
      readsFile.write(readsBuffer);
    }
    readsBuffer.clear();
  }

  private void allocation(RecordedEvent event, long end, String kind, long bytes) {
    if (!inWindow(end)) {
      return;
    }
    String site = site(event.getStackTrace());
    String layer = layer(site);
    allocations.computeIfAbsent(kind + " " + layer, key -> new Sizes()).add(bytes);
    String key = kind + " " + layer + " " + site;
    long[] sums = sites.get(sites.size() < MAX_SITES || sites.containsKey(key) ? key : kind + " " + layer + " (other)");
    if (sums == null) {
      sums = new long[2];
      sites.put(sites.size() < MAX_SITES ? key : kind + " " + layer + " (other)", sums);
    }
    sums[0]++;
    sums[1] += bytes;
  }

  private static String layer(String site) {
    if (site.equals(TOO_DEEP)) {
      return "unknown";
    }
    return site.startsWith("io.netty.") ? "network" : site.startsWith("org.apache.lucene.") ? "lucene" : "rest";
  }

  /** The first frame that is not the JDK's: who asked for the memory. Any frame would do for a handler under Netty. */
  private static String site(RecordedStackTrace trace) {
    if (trace == null) {
      return "(no stack)";
    }
    for (RecordedFrame frame : trace.getFrames()) {
      if (frame.isJavaFrame()) {
        String owner = frame.getMethod().getType().getName();
        if (!isJdk(owner)) {
          return owner + "." + frame.getMethod().getName();
        }
      }
    }
    return trace.isTruncated() ? TOO_DEEP : "(only the JDK)";
  }

  private static boolean isJdk(String owner) {
    for (String prefix : JDK) {
      if (owner.startsWith(prefix)) {
        return true;
      }
    }
    return false;
  }

  private boolean inWindow(long end) {
    return startNs <= end && end < endNs;
  }

  private static long nanos(Instant instant) {
    return instant.getEpochSecond() * 1_000_000_000L + instant.getNano();
  }

  private String json() {
    StringBuilder out = new StringBuilder(1 << 16).append("{\"events\":").append(events);
    out.append(",\"first_ns\":").append(events == 0 ? 0 : firstNs).append(",\"last_ns\":").append(lastNs);
    out.append(",\"lost_bytes\":").append(lostBytes);
    out.append(",\"files\":[").append(String.join(",", files)).append("],\"types\":{");
    String comma = "";
    for (Map.Entry<String, long[]> type : types.entrySet()) {
      out.append(comma).append(quote(type.getKey())).append(":").append(type.getValue()[0]);
      comma = ",";
    }
    out.append("},\"known\":[");
    comma = "";
    for (String name : known) {
      out.append(comma).append(quote(name));
      comma = ",";
    }
    out.append("],\"reads\":{\"all\":").append(allReads.json()).append(",\"window\":").append(windowReads.json());
    out.append(",\"other_ports\":").append(otherPorts.json()).append(",\"empty\":").append(emptyReads);
    out.append(",\"ends\":").append(endsOfStream).append(",\"histogram\":{");
    histogram(out);
    out.append("}},\"allocations\":{");
    comma = "";
    for (Map.Entry<String, Sizes> entry : allocations.entrySet()) {
      out.append(comma).append(quote(entry.getKey())).append(":").append(entry.getValue().json());
      comma = ",";
    }
    out.append("},\"sites\":[");
    topSites(out);
    out.append("],\"pauses\":[").append(String.join(",", pauses));
    out.append("],\"collections\":[").append(String.join(",", collections));
    out.append("],\"heap\":[").append(String.join(",", heap));
    out.append("],\"direct\":[").append(String.join(",", direct));
    return out.append("],\"failures\":[").append(String.join(",", failures)).append("]}").toString();
  }

  private void histogram(StringBuilder out) {
    String comma = "";
    for (int size = 0; size < DENSE; size++) {
      if (dense[size] > 0) {
        out.append(comma).append('"').append(size).append("\":").append(dense[size]);
        comma = ",";
      }
    }
    for (Map.Entry<Long, long[]> entry : sparse.entrySet()) {
      out.append(comma).append('"').append(entry.getKey()).append("\":").append(entry.getValue()[0]);
      comma = ",";
    }
  }

  private void topSites(StringBuilder out) {
    List<Map.Entry<String, long[]>> top = new ArrayList<>(sites.entrySet());
    top.sort((left, right) -> Long.compare(right.getValue()[1], left.getValue()[1]));
    String comma = "";
    for (Map.Entry<String, long[]> entry : top.subList(0, Math.min(100, top.size()))) {
      String[] words = entry.getKey().split(" ", 3);
      out.append(comma).append("{\"kind\":").append(quote(words[0])).append(",\"layer\":").append(quote(words[1]));
      out.append(",\"site\":").append(quote(words[2])).append(",\"count\":").append(entry.getValue()[0]);
      out.append(",\"bytes\":").append(entry.getValue()[1]).append("}");
      comma = ",";
    }
  }

  private static String quote(String text) {
    if (text == null) {
      return "null";
    }
    StringBuilder out = new StringBuilder("\"");
    for (char letter : text.toCharArray()) {
      if (letter == '"' || letter == '\\') {
        out.append('\\').append(letter);
      } else if (letter < ' ') {
        out.append(String.format("\\u%04x", (int) letter));
      } else {
        out.append(letter);
      }
    }
    return out.append('"').toString();
  }
}
