import io.undertow.Undertow;
import io.undertow.server.handlers.BlockingHandler;
import io.undertow.util.Methods;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.concurrent.atomic.AtomicLong;

/** Takes a document per line at POST /events; GET /count returns how many it had. */
public class UndertowEvents {
    public static void main(String[] arguments) {
        AtomicLong stored = new AtomicLong();
        BlockingHandler handler = new BlockingHandler(exchange -> {
            if (exchange.getRequestMethod().equals(Methods.POST)) {
                stored.addAndGet(new BufferedReader(new InputStreamReader(exchange.getInputStream())).lines().count());
                exchange.setStatusCode(204);
            } else {
                exchange.getResponseSender().send("{\"stored\": " + stored + "}");
            }
        });
        int port = Integer.parseInt(arguments[1]);
        Undertow.builder().addHttpListener(port, arguments[0]).setHandler(handler).build().start();
    }
}
