import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.locks.ReentrantLock;
import org.apache.lucene.index.DocumentsWriterPerThread;

/**
 * Ground truth of what makes threads slow. Each thing is done by a thread of its name, and printed with its begin and
 * end as "name begin_ns end_ns" (CLOCK_REALTIME).
 */
public final class Stalls {
  static final Object MONITOR = new Object();
  static final ReentrantLock LOCK = new ReentrantLock();

  interface Work {
    void run() throws Exception;
  }

  public static void main(String[] arguments) throws Exception {
    Path folder = Path.of(arguments[0]);
    // Before all room is taken: what is written from the heap is copied to a direct buffer first, and waits for room.
    ByteBuffer piece = ByteBuffer.allocateDirect(1 << 20);
    // A pool that has nothing to do for most of the time.
    ExecutorService pool = Executors.newFixedThreadPool(2, job -> new Thread(job, "idle"));
    pool.submit(() -> {}).get();
    pool.submit(() -> {}).get();
    did("flush", () -> DocumentsWriterPerThread.flush(700));
    did("busy", () -> DocumentsWriterPerThread.index(300));
    held("monitor", 400);
    held("lock", 500);
    did("buffers", () -> {
      // All there may be (-XX:MaxDirectMemorySize=64m), and one more: the JVM tries 9 times, and sleeps in between.
      List<ByteBuffer> kept = new ArrayList<>();
      try {
        for (;;) {
          kept.add(ByteBuffer.allocateDirect(1 << 20));
        }
      } catch (OutOfMemoryError expected) {
        kept.clear();
      }
    });
    held("park", 450);
    did("force", () -> {
      try (FileChannel file = FileChannel.open(folder.resolve("forced"), StandardOpenOption.CREATE, StandardOpenOption.WRITE)) {
        for (int i = 0; i < 200; i++) {
          piece.clear();
          file.write(piece);
        }
        file.force(true);
      }
    });
    pool.submit(() -> {}).get();
    pool.shutdown();
  }

  /** A thread of that name waits for so long for what this thread holds. */
  private static void held(String name, long milliseconds) throws Exception {
    Thread waits;
    if (name.equals("park")) {
      CountDownLatch latch = new CountDownLatch(1);
      waits = start(name, latch::await);
      Thread.sleep(milliseconds);
      latch.countDown();
    } else if (name.equals("monitor")) {
      synchronized (MONITOR) {
        waits = start(name, () -> {
          synchronized (MONITOR) {
            MONITOR.hashCode();
          }
        });
        Thread.sleep(milliseconds);
      }
    } else {
      LOCK.lock();
      waits = start(name, () -> {
        LOCK.lock();
        LOCK.unlock();
      });
      Thread.sleep(milliseconds);
      LOCK.unlock();
    }
    waits.join();
  }

  private static void did(String name, Work work) throws Exception {
    start(name, work).join();
  }

  private static Thread start(String name, Work work) {
    Thread thread = new Thread(() -> {
      long begin = now();
      try {
        work.run();
      } catch (Exception problem) {
        throw new IllegalStateException(problem);
      }
      synchronized (System.out) {
        System.out.println(name + " " + begin + " " + now());
      }
    }, name);
    thread.start();
    return thread;
  }

  private static long now() {
    java.time.Instant now = java.time.Instant.now();
    return now.getEpochSecond() * 1_000_000_000L + now.getNano();
  }
}
