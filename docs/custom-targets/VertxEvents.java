import io.vertx.core.Vertx;
import io.vertx.core.http.HttpMethod;
import io.vertx.core.http.HttpServerOptions;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.IntStream;

/**
 * Takes a document per line at POST /events; GET /count returns how many it had.
 *
 * WINDOW: bytes of the flow-control windows of HTTP/2, of a stream and of its connection; 0: Vert.x's own.
 */
public class VertxEvents {
    public static void main(String[] arguments) {
        AtomicLong stored = new AtomicLong();
        HttpServerOptions options = new HttpServerOptions();
        int window = Integer.parseInt(System.getenv("WINDOW"));
        if (window > 0) {
            options.getInitialSettings().setInitialWindowSize(window);
            options.setHttp2ConnectionWindowSize(window);
        }
        Vertx.vertx().createHttpServer(options).requestHandler(request -> {
            if (request.method() == HttpMethod.POST) {
                request.handler(part -> stored.addAndGet(
                    IntStream.range(0, part.length()).filter(i -> part.getByte(i) == '\n').count()));
                request.endHandler(end -> request.response().setStatusCode(204).end());
            } else {
                request.response().end("{\"stored\": " + stored + "}");
            }
        }).listen(Integer.parseInt(arguments[1]), arguments[0]);
    }
}
