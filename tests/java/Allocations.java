import io.netty.pretend.Buffers;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;

/**
 * Ground truth of allocations. "pattern": 2,000 arrays of 1 MiB by the network layer, 1,000 of 512 KiB by this class,
 * then 200 MB in arrays of 1 KiB. "behind": 100 arrays of 1 MiB that the JDK makes for this class. "heap", "direct", "caught": an OutOfMemoryError of that kind.
 */
public final class Allocations {
  static Object sink;

  public static void main(String[] arguments) {
    List<Object> kept = new ArrayList<>();
    switch (arguments[0]) {
      case "pattern":
        pattern();
        break;
      case "behind":
        for (int i = 0; i < 100; i++) {
          sink = ByteBuffer.allocate(1 << 20);
        }
        break;
      case "heap":
        for (;;) {
          kept.add(new byte[1 << 20]);
        }
      case "direct":
        for (;;) {
          kept.add(ByteBuffer.allocateDirect(1 << 20));
        }
      case "caught":
        try {
          for (;;) {
            kept.add(ByteBuffer.allocateDirect(1 << 20));
          }
        } catch (OutOfMemoryError expected) {
          System.out.println("caught after " + kept.size());
        }
        break;
      default:
        throw new IllegalArgumentException(arguments[0]);
    }
  }

  private static void pattern() {
    for (int i = 0; i < 2000; i++) {
      sink = Buffers.take(1 << 20);
    }
    for (int i = 0; i < 1000; i++) {
      sink = new byte[512 << 10];
    }
    for (int i = 0; i < 200_000; i++) {
      sink = new byte[1024 - 16];
    }
  }
}
