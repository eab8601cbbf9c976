import java.io.IOException;
import java.io.InputStream;
import java.util.concurrent.atomic.AtomicLong;
import org.eclipse.jetty.io.Content;
import org.eclipse.jetty.server.Handler;
import org.eclipse.jetty.server.HttpConnectionFactory;
import org.eclipse.jetty.server.Request;
import org.eclipse.jetty.server.Response;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;
import org.eclipse.jetty.util.Callback;

/** Takes a document per line at POST /events; GET /count returns how many it had. Its input buffers are on the heap. */
public class JettyPool extends Handler.Abstract {
    private final AtomicLong stored = new AtomicLong();

    @Override
    public boolean handle(Request request, Response response, Callback callback) throws IOException {
        if (request.getMethod().equals("POST")) {
            InputStream body = Content.Source.asInputStream(request);
            byte[] part = new byte[8192];
            for (int length = body.read(part); length >= 0; length = body.read(part)) {
                for (int i = 0; i < length; i++) {
                    stored.addAndGet(part[i] == '\n' ? 1 : 0);
                }
            }
            response.setStatus(204);
            callback.succeeded();
        } else {
            Content.Sink.write(response, true, "{\"stored\": " + stored + "}", callback);
        }
        return true;
    }

    public static void main(String[] arguments) throws Exception {
        Server server = new Server();
        HttpConnectionFactory http = new HttpConnectionFactory();
        http.setInputBufferSize(Integer.getInteger("inputBufferSize"));
        http.setUseInputDirectByteBuffers(false);
        ServerConnector connector = new ServerConnector(server, http);
        connector.setHost(arguments[0]);
        connector.setPort(Integer.parseInt(arguments[1]));
        server.addConnector(connector);
        server.setHandler(new JettyPool());
        server.start();
    }
}
