import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import io.netty.channel.ChannelFuture;
import io.netty.channel.ChannelFutureListener;
import io.netty.channel.ChannelHandlerContext;
import io.netty.handler.codec.http.DefaultFullHttpResponse;
import io.netty.handler.codec.http.FullHttpResponse;
import io.netty.handler.codec.http.HttpHeaderNames;
import io.netty.handler.codec.http.HttpHeaderValues;
import io.netty.handler.codec.http.HttpResponseStatus;
import io.netty.handler.codec.http.HttpVersion;
import java.lang.management.GarbageCollectorMXBean;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;

/** What the small servers have in common: how they begin, how they answer over HTTP, and what they say of their JVM. */
final class Answers {
    /** What a server does to begin. */
    interface Start {
        void serve() throws Exception;
    }

    /** Begins; ends the JVM when that fails: Netty's threads would live on, and nobody would hear why it never answers. */
    static void start(Start server) {
        try {
            server.serve();
        } catch (Throwable error) {
            error.printStackTrace();
            System.exit(1);
        }
    }

    static void respond(ChannelHandlerContext context, boolean alive, HttpResponseStatus status, String json) {
        respond(context, alive, status, Unpooled.copiedBuffer(json, StandardCharsets.UTF_8), HttpHeaderValues.APPLICATION_JSON);
    }

    static void respond(
            ChannelHandlerContext context, boolean alive, HttpResponseStatus status, ByteBuf body, CharSequence type) {
        FullHttpResponse response = new DefaultFullHttpResponse(HttpVersion.HTTP_1_1, status, body);
        response.headers().set(HttpHeaderNames.CONTENT_TYPE, type);
        response.headers().setInt(HttpHeaderNames.CONTENT_LENGTH, body.readableBytes());
        if (!alive) {
            response.headers().set(HttpHeaderNames.CONNECTION, HttpHeaderValues.CLOSE);
        }
        ChannelFuture written = context.writeAndFlush(response);
        if (!alive) {
            written.addListener(ChannelFutureListener.CLOSE);
        }
    }

    /** The names and values of the JVM, for the object in which a server describes itself. */
    static String jvm() {
        StringBuilder collectors = new StringBuilder();
        for (GarbageCollectorMXBean collector : ManagementFactory.getGarbageCollectorMXBeans()) {
            collectors.append(collectors.length() == 0 ? "" : ",").append('"').append(collector.getName()).append('"');
        }
        return "\"java\":\"" + System.getProperty("java.version") + "\",\"collectors\":[" + collectors + "],\"heap_bytes\":"
            + Runtime.getRuntime().maxMemory();
    }

    private Answers() {
    }
}
