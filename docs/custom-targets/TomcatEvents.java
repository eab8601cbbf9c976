import jakarta.servlet.http.HttpServlet;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.catalina.Context;
import org.apache.catalina.startup.Tomcat;

/** Takes a document per line at POST /events; GET /count returns how many it had. */
public class TomcatEvents extends HttpServlet {
    private final AtomicLong stored = new AtomicLong();

    @Override
    protected void doPost(HttpServletRequest request, HttpServletResponse response) throws IOException {
        stored.addAndGet(request.getReader().lines().count());
        response.setStatus(204);
    }

    @Override
    protected void doGet(HttpServletRequest request, HttpServletResponse response) throws IOException {
        response.getWriter().print("{\"stored\": " + stored + "}");
    }

    public static void main(String[] arguments) throws Exception {
        Tomcat tomcat = new Tomcat();
        tomcat.setBaseDir(arguments[2]);
        tomcat.setPort(Integer.parseInt(arguments[1]));
        tomcat.getConnector().setProperty("address", arguments[0]);
        Context context = tomcat.addContext("", null);
        Tomcat.addServlet(context, "events", new TomcatEvents());
        context.addServletMappingDecoded("/", "events");
        tomcat.start();
        tomcat.getServer().await();
    }
}
