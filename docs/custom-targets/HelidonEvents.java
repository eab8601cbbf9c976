import io.helidon.http.Status;
import io.helidon.webserver.WebServer;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.concurrent.atomic.AtomicLong;

/** Takes a document per line at POST /events; GET /count returns how many it had. */
public class HelidonEvents {
    public static void main(String[] arguments) {
        AtomicLong stored = new AtomicLong();
        WebServer.builder().host(arguments[0]).port(Integer.parseInt(arguments[1])).routing(routing -> routing
            .post("/events", (request, response) -> {
                InputStreamReader body = new InputStreamReader(request.content().inputStream());
                stored.addAndGet(new BufferedReader(body).lines().count());
                response.status(Status.NO_CONTENT_204).send();
            })
            .get("/count", (request, response) -> response.send("{\"stored\": " + stored + "}"))
        ).build().start();
    }
}
