import java.io.InputStreamReader;
import java.net.InetSocketAddress;
import java.util.concurrent.atomic.AtomicLong;
import org.eclipse.jetty.http.HttpStatus;
import org.eclipse.jetty.io.Content;
import org.eclipse.jetty.server.Handler;
import org.eclipse.jetty.server.Request;
import org.eclipse.jetty.server.Response;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.util.Callback;
import org.eclipse.jetty.util.ajax.JSON;

/** Takes JSON arrays at POST /events, and tells at GET /count how many documents it had. */
public class JettyEvents extends Handler.Abstract {
    private final AtomicLong stored = new AtomicLong();

    @Override
    public boolean handle(Request request, Response response, Callback callback) {
        if (request.getMethod().equals("POST") && Request.getPathInContext(request).equals("/events")) {
            Object read = new JSON().fromJSON(new InputStreamReader(Content.Source.asInputStream(request)));
            stored.addAndGet(((Object[]) read).length);
            response.setStatus(HttpStatus.NO_CONTENT_204);
            callback.succeeded();
            return true;
        }
        Content.Sink.write(response, true, "{\"documents\": {\"stored\": " + stored + "}}", callback);
        return true;
    }

    public static void main(String[] arguments) throws Exception {
        Server server = new Server(new InetSocketAddress(arguments[0], Integer.parseInt(arguments[1])));
        server.setHandler(new JettyEvents());
        server.start();
    }
}
