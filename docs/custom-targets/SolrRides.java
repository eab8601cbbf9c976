import java.net.InetSocketAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.EnumSet;
import javax.servlet.DispatcherType;
import org.apache.solr.servlet.CoreContainerProvider;
import org.apache.solr.servlet.SolrDispatchFilter;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.servlet.ServletContextHandler;

/** Solr with one core, "rides", which indexes every field as a text. Arguments: host, port, an empty folder. */
public class SolrRides {
    public static void main(String[] arguments) throws Exception {
        Path home = Path.of(arguments[2]);
        Path conf = Files.createDirectories(home.resolve("rides/conf"));
        Files.writeString(home.resolve("solr.xml"), "<solr/>");
        Files.writeString(home.resolve("rides/core.properties"), "");
        Files.writeString(conf.resolve("solrconfig.xml"), "<config><luceneMatchVersion>9.11</luceneMatchVersion>"
            + "<requestHandler name='/select' class='solr.SearchHandler'/></config>");
        Files.writeString(conf.resolve("schema.xml"), "<schema name='rides' version='1.6'>"
            + "<fieldType name='string' class='solr.StrField'/>"
            + "<dynamicField name='*' type='string' indexed='true' stored='true' multiValued='true'/></schema>");
        System.setProperty("solr.solr.home", arguments[2]);
        Server server = new Server(new InetSocketAddress(arguments[0], Integer.parseInt(arguments[1])));
        ServletContextHandler context = new ServletContextHandler(server, "/solr");
        context.addEventListener(new CoreContainerProvider());
        context.addFilter(SolrDispatchFilter.class, "/*", EnumSet.of(DispatcherType.REQUEST));
        server.start();
    }
}
