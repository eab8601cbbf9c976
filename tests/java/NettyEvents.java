import jdk.jfr.Event;
import jdk.jfr.Name;

/** Writes events as Netty's pooled allocator does that has arenas for one kind of memory only. */
public final class NettyEvents {
  private static final boolean HEAP = false;
  private static final boolean DIRECT = true;

  public static class Chunk extends Event {
    Class<?> allocatorType = NettyEvents.class;
    int capacity;
    boolean direct;

    void write(int bytes, boolean isDirect) {
      capacity = bytes;
      direct = isDirect;
      commit();
    }
  }

  public static class Buffer extends Event {
    Class<?> allocatorType = NettyEvents.class;
    int maxFastCapacity;
    boolean direct;

    void write(int bytes, boolean isDirect) {
      maxFastCapacity = bytes;
      direct = isDirect;
      commit();
    }
  }

  @Name("io.netty.AllocateChunk")
  public static final class AllocateChunk extends Chunk {}

  @Name("io.netty.FreeChunk")
  public static final class FreeChunk extends Chunk {}

  @Name("io.netty.AllocateBuffer")
  public static final class AllocateBuffer extends Buffer {}

  @Name("io.netty.ReallocateBuffer")
  public static final class ReallocateBuffer extends Buffer {}

  @Name("io.netty.FreeBuffer")
  public static final class FreeBuffer extends Buffer {}

  public static void main(String[] arguments) {
    new AllocateChunk().write(4000, HEAP);
    new AllocateChunk().write(1000, HEAP);
    new AllocateBuffer().write(100, HEAP);
    new AllocateBuffer().write(200, HEAP);
    new ReallocateBuffer().write(200, HEAP);
    new AllocateBuffer().write(800, HEAP);
    new FreeBuffer().write(100, HEAP);
    new FreeChunk().write(1000, HEAP);
    // Unpooled, and freed without an event.
    new AllocateBuffer().write(50_000, DIRECT);
  }
}
