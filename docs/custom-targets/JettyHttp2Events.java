import java.io.InputStream;
import java.util.concurrent.atomic.AtomicLong;
import org.eclipse.jetty.http2.server.HTTP2CServerConnectionFactory;
import org.eclipse.jetty.io.Content;
import org.eclipse.jetty.server.Handler;
import org.eclipse.jetty.server.HttpConfiguration;
import org.eclipse.jetty.server.HttpConnectionFactory;
import org.eclipse.jetty.server.Request;
import org.eclipse.jetty.server.Response;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;
import org.eclipse.jetty.util.Callback;

/**
 * Takes a document per line at POST /events; GET /count returns how many it had.
 *
 * WINDOW: bytes of the flow-control windows of a stream and of its connection; 0: Jetty's own.
 */
public class JettyHttp2Events extends Handler.Abstract {
    private final AtomicLong stored = new AtomicLong();

    @Override
    public boolean handle(Request request, Response response, Callback callback) throws Exception {
        if (!request.getMethod().equals("POST")) {
            Content.Sink.write(response, true, "{\"stored\": " + stored + "}", callback);
            return true;
        }
        byte[] buffer = new byte[65536];
        long lines = 0;
        try (InputStream body = Content.Source.asInputStream(request)) {
            for (int read; (read = body.read(buffer)) >= 0;) {
                for (int i = 0; i < read; i++) {
                    lines += buffer[i] == '\n' ? 1 : 0;
                }
            }
        }
        stored.addAndGet(lines);
        response.setStatus(204);
        callback.succeeded();
        return true;
    }

    public static void main(String[] arguments) throws Exception {
        HttpConfiguration configuration = new HttpConfiguration();
        HTTP2CServerConnectionFactory http2 = new HTTP2CServerConnectionFactory(configuration);
        int window = Integer.parseInt(System.getenv("WINDOW"));
        if (window > 0) {
            http2.setInitialStreamRecvWindow(window);
            http2.setInitialSessionRecvWindow(window);
        }
        Server server = new Server();
        ServerConnector connector = new ServerConnector(server, new HttpConnectionFactory(configuration), http2);
        connector.setHost(arguments[0]);
        connector.setPort(Integer.parseInt(arguments[1]));
        server.addConnector(connector);
        server.setHandler(new JettyHttp2Events());
        server.start();
    }
}
