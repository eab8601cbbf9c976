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
import java.util.Arrays;
import java.util.BitSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.PriorityQueue;
import java.util.TreeMap;
import java.util.TreeSet;
import jdk.jfr.EventType;
import jdk.jfr.consumer.RecordedClass;
import jdk.jfr.consumer.RecordedEvent;
import jdk.jfr.consumer.RecordedFrame;
import jdk.jfr.consumer.RecordedObject;
import jdk.jfr.consumer.RecordedStackTrace;
import jdk.jfr.consumer.RecordedThread;
import jdk.jfr.consumer.RecordingFile;

/**
 * Flight recordings as one JSON object on stdout, and their socket reads as fixed records in a file.
 *
 * <p>Usage: JfrReader SINCE_NS START_NS END_NS PORTS NETWORK READS_FILE RECORDING... Times are CLOCK_REALTIME and an
 * event belongs to the window by its end; one that ended before SINCE_NS does not count at all: a JVM that ran before
 * gives whole chunks. PORTS are the peer's ("1,2,3"; "*": all). NETWORK are the packages of the server's network layer,
 * also below another package, as shading puts them there ("io.netty,org.xnio"). Memory does not grow with reads and allocations: only
 * collections and distinct sizes and sites are kept. Runs on Java 11 and later, and reads recordings of its own Java
 * and older. Large objects are all counted; the moments of MAX_LARGE of them are kept.
 */
public final class JfrReader {
  /** Sizes below this are counted in an array, larger ones in a map. */
  private static final int DENSE = 1 << 20;

  private static final int MAX_SITES = 20_000;
  private static final long LARGE_BYTES = 1L << 20;
  private static final long VERY_LARGE_BYTES = 100L << 20;
  private static final int MAX_LARGE = 200_000;
  private static final int STACK_FRAMES = 8;
  private static final long NETTY_PERIOD_NS = 100_000_000;
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

  private static final class NettyMemory {
    final Map<Long, long[]> changes = new HashMap<>();
    boolean hasChunks;

    void add(long end, long chunkBytes, long bufferBytes) {
      long[] change = changes.computeIfAbsent(end / NETTY_PERIOD_NS * NETTY_PERIOD_NS, key -> new long[2]);
      change[0] += chunkBytes;
      change[1] += bufferBytes;
    }
  }

  /** Direct buffers: how long each took to get, and what the JVM did to find room for them. */
  private static final class DirectMemory {
    private static final int LONGEST = 200;

    final Sizes all = new Sizes();
    final Sizes window = new Sizes();
    /** Nanoseconds by three digits: 1,234,567 is 1,230,000. */
    final Map<Long, long[]> times = new TreeMap<>();
    /** The longest ones with their ends: [took, end], the shortest of them first. */
    final PriorityQueue<long[]> longest = new PriorityQueue<>((left, right) -> Long.compare(left[0], right[0]));
    /** Sleeps of a thread that waits for room, by how long it wanted to sleep. */
    final Map<Long, long[]> sleeps = new TreeMap<>();
    long systemGcs;

    void allocation(long end, long took, boolean inWindow) {
      all.add(took);
      if (!inWindow) {
        return;
      }
      window.add(took);
      long unit = 1;
      while (took / unit >= 1000) {
        unit *= 10;
      }
      times.computeIfAbsent(took / unit * unit, key -> new long[1])[0]++;
      if (longest.size() < LONGEST || took > longest.peek()[0]) {
        longest.add(new long[] {took, end});
      }
      if (longest.size() > LONGEST) {
        longest.remove();
      }
    }

    String json() {
      List<String> longOnes = new ArrayList<>();
      longest.forEach(one -> longOnes.add("[" + one[1] + "," + one[0] + "]"));
      return "{\"all\":" + all.json() + ",\"window\":" + window.json() + ",\"times\":" + counts(times)
          + ",\"longest\":[" + String.join(",", longOnes) + "],\"sleeps\":" + counts(sleeps)
          + ",\"system_gcs\":" + systemGcs + "}";
    }
  }

  private final long sinceNs;
  private final long startNs;
  private final long endNs;
  private final BitSet ports = new BitSet(1 << 16);
  /** ".io.netty." of each package. */
  private final List<String> network = new ArrayList<>();
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
  private final AllocationStacks stacks = new AllocationStacks();

  private final Sizes large = new Sizes();
  /** How many large objects are larger than two to the power of the index. */
  private final long[] largerThan = new long[64];
  private final Map<String, long[]> largeSites = new HashMap<>();
  private final List<String> largeMoments = new ArrayList<>();
  private long veryLarge;
  private long largeLost;
  private long largestBytes;
  private String largestStack = "";

  private final List<String> pauses = new ArrayList<>();
  private final List<String> collections = new ArrayList<>();
  private final List<String> heap = new ArrayList<>();
  private final List<String> direct = new ArrayList<>();
  private final List<String> failures = new ArrayList<>();

  /** Name of each thread, then moments and bytes allocated until then, where these changed; in Java 11 without order. */
  private final Map<Long, StringBuilder> threads = new TreeMap<>();
  private final Map<Long, long[]> lastSamples = new HashMap<>();

  /** Netty's memory by allocator, on the heap and direct. */
  private final Map<Long, NettyMemory> netty = new HashMap<>();
  /** The same as a server of ours samples it: chunks, and buffers in use (-1: unknown). */
  private final Map<Long, long[]> nettySamples = new TreeMap<>();

  private final DirectMemory directMemory = new DirectMemory();
  private final StallSpans stalls;

  private final Map<String, long[]> types = new TreeMap<>();
  /** Events that this Java could have written: the lack of one that it does not know means nothing. */
  private final TreeSet<String> known = new TreeSet<>();

  /** Names of all recordings that ran in the JVM. */
  private final TreeSet<String> recordings = new TreeSet<>();
  /** Settings in force, as "event setting": all recordings of a JVM share them. By event type until the file is read. */
  private final TreeSet<String> settings = new TreeSet<>();
  private final Map<Long, TreeSet<String>> settingsByType = new HashMap<>();

  private final List<String> files = new ArrayList<>();
  private long events;
  private long lostBytes;
  private long firstNs = Long.MAX_VALUE;
  private long lastNs;

  private JfrReader(String since, String start, String end, String portList, String packages, String reads)
      throws IOException {
    sinceNs = Long.parseLong(since);
    startNs = Long.parseLong(start);
    endNs = Long.parseLong(end);
    stalls = new StallSpans(startNs, endNs);
    if (portList.equals("*")) {
      ports.set(0, 1 << 16);
    } else {
      for (String port : portList.split(",")) {
        if (!port.isEmpty()) {
          ports.set(Integer.parseInt(port));
        }
      }
    }
    for (String name : packages.split(",")) {
      network.add("." + name + ".");
    }
    readsFile = FileChannel.open(Path.of(reads), StandardOpenOption.CREATE, StandardOpenOption.WRITE,
        StandardOpenOption.TRUNCATE_EXISTING);
  }

  public static void main(String[] arguments) throws IOException {
    JfrReader reader =
        new JfrReader(arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
    for (int i = 6; i < arguments.length; i++) {
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
      for (EventType type : file.readEventTypes()) {
        known.add(quote(type.getName()));
        for (String setting : settingsByType.getOrDefault(type.getId(), new TreeSet<>())) {
          settings.add("[" + quote(type.getName()) + "," + setting + "]");
        }
      }
    } catch (IOException | RuntimeException | Error problem) {
      error = quote(problem.toString());
    }
    files.add("{\"file\":" + quote(name) + ",\"bytes\":" + new File(name).length() + ",\"events\":" + (events - before)
        + ",\"error\":" + error + "}");
  }

  private void take(RecordedEvent event) throws IOException {
    long end = nanos(event.getEndTime());
    String type = event.getEventType().getName();
    // Written when a recording begins, which is before SINCE_NS.
    if (type.equals("jdk.ActiveRecording")) {
      recordings.add(quote(event.getString("name")));
    } else if (type.equals("jdk.ActiveSetting")) {
      settingsByType.computeIfAbsent(event.getLong("id"), key -> new TreeSet<>())
          .add(quote(event.getString("name")) + "," + quote(event.getString("value")));
    }
    if (end < sinceNs) {
      return;
    }
    events++;
    types.computeIfAbsent(type, key -> new long[1])[0]++;
    firstNs = Math.min(firstNs, end);
    lastNs = Math.max(lastNs, end);
    stalls.take(type, event, end);
    switch (type) {
      case "jdk.SocketRead":
        read(event, end);
        break;
      case "jdk.ObjectAllocationOutsideTLAB":
        allocation(event, end, "outside", event.getLong("allocationSize"));
        object(event, end);
        break;
      case "jdk.ObjectAllocationInNewTLAB":
        allocation(event, end, "tlab", event.getLong("tlabSize"));
        object(event, end);
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
      case "jdk.ThreadAllocationStatistics":
        threadAllocation(event.getValue("thread"), end, event.getLong("allocated"));
        break;
      case "io.netty.AllocateChunk":
        nettyMemory(event).hasChunks = true;
        nettyMemory(event).add(end, event.getInt("capacity"), 0);
        break;
      case "io.netty.FreeChunk":
        nettyMemory(event).add(end, -event.getInt("capacity"), 0);
        break;
      case "io.netty.AllocateBuffer":
        nettyMemory(event).add(end, 0, event.getInt("maxFastCapacity"));
        break;
      case "io.netty.FreeBuffer":
      case "io.netty.ReallocateBuffer":
        nettyMemory(event).add(end, 0, -event.getInt("maxFastCapacity"));
        break;
      case "ingestbench.NettyMemory":
        nettySamples.put(end, new long[] {event.getLong("chunkBytes"), event.getLong("bufferBytes")});
        break;
      case "ingestbench.DirectAllocation":
        directMemory.allocation(end, event.getLong("took"), inWindow(end));
        break;
      case "jdk.ThreadSleep":
        if (inWindow(end) && has(event.getStackTrace(), "java.nio.Bits", "reserveMemory")) {
          directMemory.sleeps.computeIfAbsent(event.getDuration("time").toNanos(), key -> new long[1])[0]++;
        }
        break;
      case "jdk.SystemGC":
        directMemory.systemGcs += inWindow(end) ? 1 : 0;
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

  private NettyMemory nettyMemory(RecordedEvent event) {
    RecordedClass allocator = event.getValue("allocatorType");
    return netty.computeIfAbsent(2 * allocator.getId() + (event.getBoolean("direct") ? 1 : 0), key -> new NettyMemory());
  }

  /** Moments of changes: by how many bytes Netty's chunks grew, and the buffers in use. Its own events are exact. */
  private Map<Long, long[]> nettyChanges() {
    Map<Long, long[]> changes = new TreeMap<>();
    for (NettyMemory memory : netty.values()) {
      // Without arenas (numDirectArenas=0) each buffer is unpooled: Netty writes its allocation, and not its end.
      if (memory.hasChunks) {
        memory.changes.forEach((start, change) -> changes.merge(start, change,
            (one, other) -> new long[] {one[0] + other[0], one[1] + other[1]}));
      }
    }
    if (changes.isEmpty()) {
      long[] last = {0, 0};
      for (Map.Entry<Long, long[]> sample : nettySamples.entrySet()) {
        long[] now = sample.getValue();
        changes.put(sample.getKey(), new long[] {now[0] - last[0], now[1] - last[1]});
        last = now;
      }
    }
    return changes;
  }

  private void threadAllocation(RecordedThread thread, long end, long allocated) {
    if (thread != null) {
      StringBuilder row =
          threads.computeIfAbsent(thread.getId(), key -> new StringBuilder("[" + quote(thread.getJavaName())));
      long[] last = lastSamples.computeIfAbsent(thread.getId(), key -> new long[2]);
      if (allocated != last[1] || end < last[0]) {
        row.append(',').append(end).append(',').append(allocated);
      }
      last[0] = end;
      last[1] = allocated;
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
    stacks.add(event, kind, bytes);
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

  /** The object itself, whether it has a TLAB of its own or none. */
  private void object(RecordedEvent event, long end) {
    long bytes = event.getLong("allocationSize");
    boolean isLargest = bytes > largestBytes && inWindow(end);
    if (bytes < LARGE_BYTES && !isLargest) {
      return;
    }
    if (isLargest) {
      largestBytes = bytes;
      largestStack = event.getClass("objectClass").getName() + ": " + stack(event);
    }
    if (bytes < LARGE_BYTES) {
      return;
    }
    if (largeMoments.size() < MAX_LARGE) {
      largeMoments.add("[" + end + "," + bytes + "]");
    } else {
      largeLost++;
    }
    if (!inWindow(end)) {
      return;
    }
    large.add(bytes);
    veryLarge += bytes >= VERY_LARGE_BYTES ? 1 : 0;
    for (int power = 0; power < 63 && bytes > 1L << power; power++) {
      largerThan[power]++;
    }
    String site = site(event.getStackTrace());
    boolean isKnown = largeSites.size() < MAX_SITES || largeSites.containsKey(site);
    long[] sums = largeSites.computeIfAbsent(isKnown ? site : "(other)", key -> new long[2]);
    sums[0]++;
    sums[1] += bytes;
  }

  /** Its first frames, the innermost first. */
  private static String stack(RecordedEvent event) {
    RecordedStackTrace trace = event.getStackTrace();
    StringBuilder out = new StringBuilder();
    int count = 0;
    for (RecordedFrame frame : trace == null ? List.<RecordedFrame>of() : trace.getFrames()) {
      if (frame.isJavaFrame() && count++ < STACK_FRAMES) {
        out.append(count > 1 ? " < " : "").append(frame.getMethod().getType().getName()).append('.');
        out.append(frame.getMethod().getName()).append(':').append(frame.getLineNumber());
      }
    }
    return out.toString();
  }

  private String layer(String site) {
    if (site.equals(TOO_DEEP)) {
      return "unknown";
    }
    String dotted = "." + site;
    for (String name : network) {
      if (dotted.contains(name)) {
        return "network";
      }
    }
    return site.startsWith("org.apache.lucene.") ? "lucene" : "other";
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

  private static boolean has(RecordedStackTrace trace, String owner, String method) {
    if (trace != null) {
      for (RecordedFrame frame : trace.getFrames()) {
        if (frame.isJavaFrame() && frame.getMethod().getName().equals(method)
            && frame.getMethod().getType().getName().equals(owner)) {
          return true;
        }
      }
    }
    return false;
  }

  static boolean isJdk(String owner) {
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
    out.append(",\"files\":[").append(String.join(",", files)).append("],\"types\":").append(counts(types));
    out.append(",\"known\":[").append(String.join(",", known));
    out.append("],\"recordings\":[").append(String.join(",", recordings));
    out.append("],\"settings\":[").append(String.join(",", settings));
    out.append("],\"threads\":[").append(String.join("],", threads.values())).append(threads.isEmpty() ? "" : "]");
    List<String> changes = new ArrayList<>();
    nettyChanges().forEach((start, change) -> changes.add("[" + start + "," + change[0] + "," + change[1] + "]"));
    out.append("],\"netty\":[").append(String.join(",", changes));
    out.append("],\"reads\":{\"all\":").append(allReads.json()).append(",\"window\":").append(windowReads.json());
    out.append(",\"other_ports\":").append(otherPorts.json()).append(",\"empty\":").append(emptyReads);
    for (int size = 0; size < DENSE; size++) {
      if (dense[size] > 0) {
        sparse.put((long) size, new long[] {dense[size]});
      }
    }
    out.append(",\"ends\":").append(endsOfStream).append(",\"histogram\":").append(counts(sparse));
    out.append("},\"allocations\":{");
    String comma = "";
    for (Map.Entry<String, Sizes> entry : allocations.entrySet()) {
      out.append(comma).append(quote(entry.getKey())).append(":").append(entry.getValue().json());
      comma = ",";
    }
    out.append("},\"sites\":[");
    topSites(out);
    out.append("],\"stacks\":").append(stacks.json());
    out.append(",\"pauses\":[").append(String.join(",", pauses));
    out.append("],\"collections\":[").append(String.join(",", collections));
    out.append("],\"heap\":[").append(String.join(",", heap));
    out.append("],\"large\":");
    large(out);
    out.append(",\"direct\":[").append(String.join(",", direct));
    out.append("],\"direct_memory\":").append(directMemory.json());
    out.append(",\"stalls\":").append(stalls.json());
    return out.append(",\"failures\":[").append(String.join(",", failures)).append("]}").toString();
  }

  private static String counts(Map<?, long[]> counted) {
    List<String> parts = new ArrayList<>();
    counted.forEach((value, count) -> parts.add("\"" + value + "\":" + count[0]));
    return "{" + String.join(",", parts) + "}";
  }

  private void large(StringBuilder out) {
    out.append("{\"window\":").append(large.json()).append(",\"very_large\":").append(veryLarge);
    out.append(",\"larger_than\":").append(Arrays.toString(largerThan)).append(",\"sites\":[");
    List<Map.Entry<String, long[]>> top = new ArrayList<>(largeSites.entrySet());
    top.sort((left, right) -> Long.compare(right.getValue()[1], left.getValue()[1]));
    String comma = "";
    for (Map.Entry<String, long[]> entry : top.subList(0, Math.min(100, top.size()))) {
      out.append(comma).append("[").append(quote(entry.getKey())).append(",").append(entry.getValue()[0]);
      out.append(",").append(entry.getValue()[1]).append("]");
      comma = ",";
    }
    out.append("],\"moments\":[").append(String.join(",", largeMoments)).append("],\"lost\":").append(largeLost);
    out.append(",\"largest_bytes\":").append(largestBytes).append(",\"largest\":").append(quote(largestStack)).append("}");
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

  static String quote(String text) {
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
