import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Pattern;
import jdk.jfr.consumer.RecordedClass;
import jdk.jfr.consumer.RecordedEvent;
import jdk.jfr.consumer.RecordedFrame;
import jdk.jfr.consumer.RecordedStackTrace;

/**
 * Who allocated how much, stack by stack: a tree whose first level says whether a TLAB was handed out, whose last one is
 * the class of the object, and between them the methods, the outermost first.
 *
 * <p>A tree, because stacks share most of their frames. It has at most MAX_NODES nodes: what would need more is counted
 * where the tree ends. Lines are left out, and so are the numbers that a JVM gives to hidden classes: in another run they
 * are others.
 */
final class AllocationStacks {
  private static final int MAX_NODES = 200_000;
  private static final Pattern HIDDEN = Pattern.compile("(?<=\\$\\$Lambda)\\$\\d+|[/+.]0x[0-9a-f]+"
      + "|(?<=\\.Generated(?:Method|Constructor|SerializationConstructor)Accessor)\\d+|(?<=\\.\\$Proxy|^jdk\\.proxy)\\d+");
  private static final Map<Character, String> PRIMITIVES = Map.of('B', "byte", 'C', "char", 'D', "double", 'F', "float",
      'I', "int", 'J', "long", 'S', "short", 'Z', "boolean");

  /** Of each name, as it was recorded and as it is written, its place in the names. */
  private final Map<String, Integer> numbers = new HashMap<>();
  private final List<String> names = new ArrayList<>();
  private final Map<Long, Integer> children = new HashMap<>();
  /** Of each node its parent (-1: none), its name, and the bytes and events that end there. */
  private final List<long[]> nodes = new ArrayList<>();
  private final int most;

  AllocationStacks() {
    this(MAX_NODES);
  }

  AllocationStacks(int most) {
    this.most = most;
  }

  void add(RecordedEvent event, String kind, long bytes) {
    RecordedStackTrace trace = event.getStackTrace();
    List<String> path = new ArrayList<>();
    path.add(kind.equals("tlab") ? "new TLABs" : "outside TLABs");
    if (trace == null || trace.isTruncated()) {
      path.add(trace == null ? "(no stack)" : "(stack too deep)");
    }
    List<RecordedFrame> frames = trace == null ? List.of() : trace.getFrames();
    for (int i = frames.size() - 1; i >= 0; i--) {
      if (frames.get(i).isJavaFrame()) {
        path.add(frames.get(i).getMethod().getType().getName() + "." + frames.get(i).getMethod().getName());
      }
    }
    RecordedClass made = event.getClass("objectClass");
    path.add(made == null ? "(unknown class)" : written(made.getName()));
    add(path, bytes);
  }

  /** So much at the end of that path, or where the tree ends: what has no place there may have one further up. */
  void add(List<String> path, long bytes) {
    int at = -1;
    for (String name : path) {
      int below = child(at, name);
      if (below < 0) {
        break;
      }
      at = below;
    }
    nodes.get(at)[2] += bytes;
    nodes.get(at)[3]++;
  }

  /** The node of that name below another one, or -1 when the tree is full. */
  private int child(int parent, String name) {
    Integer number = numbers.get(name);
    if (number == null) {
      String written = HIDDEN.matcher(name).replaceAll("");
      number = numbers.computeIfAbsent(written, key -> {
        names.add(key);
        return names.size() - 1;
      });
      numbers.put(name, number);
    }
    long key = ((long) parent << 32) | number;
    Integer found = children.get(key);
    if (found != null) {
      return found;
    }
    // The kinds always have a place.
    if (parent >= 0 && nodes.size() >= most) {
      return -1;
    }
    nodes.add(new long[] {parent, number, 0, 0});
    children.put(key, nodes.size() - 1);
    return nodes.size() - 1;
  }

  /** "[[B" is byte[][], "[Ljava.lang.Object;" is java.lang.Object[]. */
  private static String written(String name) {
    int depth = 0;
    while (depth < name.length() && name.charAt(depth) == '[') {
      depth++;
    }
    if (depth == 0) {
      return name;
    }
    String rest = name.substring(depth);
    String element = rest.startsWith("L") ? rest.substring(1).replace(";", "")
        : rest.length() == 1 ? PRIMITIVES.getOrDefault(rest.charAt(0), rest) : rest;
    return element + "[]".repeat(depth);
  }

  String json() {
    StringBuilder out = new StringBuilder("{\"names\":[");
    for (int i = 0; i < names.size(); i++) {
      out.append(i > 0 ? "," : "").append(JfrReader.quote(names.get(i)));
    }
    out.append("],\"nodes\":[");
    for (int i = 0; i < nodes.size(); i++) {
      long[] node = nodes.get(i);
      out.append(i > 0 ? "," : "").append('[').append(node[0]).append(',').append(node[1]).append(',').append(node[2]);
      out.append(',').append(node[3]).append(']');
    }
    return out.append("],\"is_full\":").append(nodes.size() >= most).append('}').toString();
  }
}
