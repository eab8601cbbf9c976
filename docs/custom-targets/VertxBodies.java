import io.vertx.core.Vertx;
import io.vertx.core.http.HttpMethod;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.IntStream;

/** Takes a document per line at POST /events, each body as a whole; GET /count returns how many it had. */
public class VertxBodies {
    public static void main(String[] arguments) {
        AtomicLong stored = new AtomicLong();
        Vertx.vertx().createHttpServer().requestHandler(request -> {
            if (request.method() == HttpMethod.POST) {
                request.body().onSuccess(body -> {
                    stored.addAndGet(IntStream.range(0, body.length()).filter(i -> body.getByte(i) == '\n').count());
                    request.response().setStatusCode(204).end();
                });
            } else {
                request.response().end("{\"stored\": " + stored + "}");
            }
        }).listen(Integer.parseInt(arguments[1]), arguments[0]);
    }
}
