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

/** Counts lines of documents, and writes, syncs and reads a file of its home all the time, as a server with a log does. */
public class DiskServer {
    private static final AtomicLong STORED = new AtomicLong();
    private static final int BLOCK_BYTES = 64 << 10;
    private static final int BLOCKS = 512;

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
        Thread writer = new Thread(() -> write(Path.of(arguments[2], "log")));
        writer.setDaemon(true);
        writer.start();
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
