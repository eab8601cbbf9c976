import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.IntStream;
import org.springframework.core.io.buffer.DataBuffer;
import org.springframework.core.io.buffer.DataBufferUtils;
import org.springframework.http.server.reactive.ReactorHttpHandlerAdapter;
import org.springframework.web.reactive.function.server.RouterFunctions;
import org.springframework.web.reactive.function.server.ServerResponse;
import reactor.netty.http.server.HttpServer;

/** Takes a document per line at POST /events; GET /count returns how many it had. */
public class WebFluxEvents {
    private static long countLines(DataBuffer part) {
        long lines = IntStream.range(0, part.readableByteCount()).filter(i -> part.getByte(i) == '\n').count();
        DataBufferUtils.release(part);
        return lines;
    }

    public static void main(String[] arguments) {
        AtomicLong stored = new AtomicLong();
        ReactorHttpHandlerAdapter handler = new ReactorHttpHandlerAdapter(RouterFunctions.toHttpHandler(
            RouterFunctions.route()
                .POST("/events", request -> request.bodyToFlux(DataBuffer.class)
                    .doOnNext(part -> stored.addAndGet(countLines(part)))
                    .then(ServerResponse.noContent().build()))
                .GET("/count", request -> ServerResponse.ok().bodyValue("{\"stored\": " + stored + "}"))
                .build()));
        int port = Integer.parseInt(arguments[1]);
        HttpServer.create().host(arguments[0]).port(port).handle(handler).bindNow().onDispose().block();
    }
}
