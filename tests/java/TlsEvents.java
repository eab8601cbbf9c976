import com.sun.net.httpserver.HttpsConfigurator;
import com.sun.net.httpserver.HttpsServer;
import java.io.FileInputStream;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.security.KeyStore;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicLong;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;

/** Counts lines of documents over TLS. Arguments: host, port, a PKCS#12 file with the password "secret". */
public class TlsEvents {
    public static void main(String[] arguments) throws Exception {
        char[] password = "secret".toCharArray();
        KeyStore keys = KeyStore.getInstance("PKCS12");
        keys.load(new FileInputStream(arguments[2]), password);
        KeyManagerFactory managers = KeyManagerFactory.getInstance("SunX509");
        managers.init(keys, password);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(managers.getKeyManagers(), null, null);
        AtomicLong stored = new AtomicLong();
        HttpsServer server = HttpsServer.create(new InetSocketAddress(arguments[0], Integer.parseInt(arguments[1])), 128);
        server.setHttpsConfigurator(new HttpsConfigurator(context));
        server.createContext("/", exchange -> {
            byte[] body = exchange.getRequestBody().readAllBytes();
            if (exchange.getRequestMethod().equals("POST")) {
                stored.addAndGet(new String(body, StandardCharsets.UTF_8).lines().count());
            }
            byte[] answer = ("{\"stored\": " + stored + "}").getBytes(StandardCharsets.UTF_8);
            exchange.sendResponseHeaders(200, answer.length);
            exchange.getResponseBody().write(answer);
            exchange.close();
        });
        server.setExecutor(Executors.newCachedThreadPool());
        server.start();
    }
}
