import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;

/**
 * Counts lines of documents, and writes and syncs a file of its home all the time, as a server with a log does. Beside
 * that it always has work for a third of a core.
 */
public class DiskServer {
    private static final AtomicLong STORED = new AtomicLong();
    private static final int BLOCK_BYTES = 64 << 10;
    private static final int BLOCKS = 512;
    private static final long WORK_NS = 30_000_000;

    public static void main(String[] arguments) throws Exception {
        HttpServer server = HttpServer.create(new InetSocketAddress(arguments[0], Integer.parseInt(arguments[1])), 128);
        server.createContext("/", exchange -> {
            byte[] body = exchange.getRequestBody().readAllBytes();
            if (exchange.getRequestMethod().equals("POST")) {
                STORED.addAndGet(new String(body, StandardCharsets.UTF_8).lines().count());
            }
            byte[] answer = ("{\"stored\": " + STORED + "}").getBytes(StandardCharsets.UTF_8);
            exchange.sendResponseHeaders(200, answer.length);
            exchange.getResponseBody().write(answer);
            exchange.close();
        });
        server.setExecutor(Executors.newCachedThreadPool());
        server.start();
        start(() -> write(Path.of(arguments[2], "log")));
        start(DiskServer::work);
    }

    private static void start(Runnable task) {
        Thread thread = new Thread(task);
        thread.setDaemon(true);
        thread.start();
    }

    private static void work() {
        while (true) {
            long until = System.nanoTime() + WORK_NS;
            while (System.nanoTime() < until) {
                Thread.onSpinWait();
            }
            LockSupport.parkNanos(2 * WORK_NS);
        }
    }

    /** When the disk is full it begins again at its first block. */
    private static void write(Path path) {
        ByteBuffer block = ByteBuffer.allocateDirect(BLOCK_BYTES);
        for (long number = 0; ; number++) {
            try (FileChannel log = FileChannel.open(path, StandardOpenOption.CREATE, StandardOpenOption.WRITE)) {
                for (; ; number++) {
                    log.write(block.clear(), number % BLOCKS * BLOCK_BYTES);
                    log.force(true);
                }
            } catch (IOException error) {
                // What was written once has its blocks.
                number = 0;
            }
        }
    }
}
