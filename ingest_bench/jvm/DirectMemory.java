import io.netty.bootstrap.ServerBootstrap;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufAllocator;
import io.netty.buffer.UnpooledByteBufAllocator;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInitializer;
import io.netty.channel.ChannelOption;
import io.netty.channel.FixedRecvByteBufAllocator;
import io.netty.channel.RecvByteBufAllocator;
import io.netty.channel.SimpleChannelInboundHandler;
import io.netty.channel.nio.NioEventLoopGroup;
import io.netty.channel.socket.SocketChannel;
import io.netty.channel.socket.nio.NioServerSocketChannel;
import io.netty.handler.codec.http.HttpContent;
import io.netty.handler.codec.http.HttpMethod;
import io.netty.handler.codec.http.HttpObject;
import io.netty.handler.codec.http.HttpRequest;
import io.netty.handler.codec.http.HttpResponseStatus;
import io.netty.handler.codec.http.HttpServerCodec;
import io.netty.handler.codec.http.HttpUtil;
import io.netty.handler.codec.http.LastHttpContent;
import io.netty.util.UncheckedBooleanSupplier;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.LongAdder;
import jdk.jfr.DataAmount;
import jdk.jfr.Enabled;
import jdk.jfr.Event;
import jdk.jfr.Label;
import jdk.jfr.Name;
import jdk.jfr.StackTrace;
import jdk.jfr.Timespan;

/**
 * A server that makes direct buffers and leaves them to the collector. Options are system properties "direct.*".
 *
 * <p>Alone: threads allocate as fast as they can, from the first request until the last client has gone. Fed: each
 * request's body is read into a direct buffer of its size. Each allocation is timed and counted, and is an event of the
 * flight recorder where a recording asks for it. The first OutOfMemoryError ends the JVM.
 */
public final class DirectMemory {
    private static final String HOST = System.getProperty("direct.host", "127.0.0.1");
    private static final int PORT = Integer.getInteger("direct.port", 9200);
    /** Alone: the threads that allocate. Fed: the event loops that read. */
    private static final int THREADS = Integer.getInteger("direct.threads", 2);
    private static final boolean FED = "fed".equals(System.getProperty("direct.mode", "alone"));
    /** How long a buffer is kept before it is garbage. */
    private static final long RETAIN_NS = Long.getLong("direct.retain_ns", 0);
    /** The sizes of JDK-6857566. */
    private static final int SMALLEST_BYTES = 256 << 10;
    private static final int LARGEST_BYTES = 1 << 20;
    private static final int READ_BYTES = 64 << 10;

    private static final LongAdder DOCUMENTS = new LongAdder();
    private static final LongAdder ALLOCATIONS = new LongAdder();
    private static final LongAdder ALLOCATED_BYTES = new LongAdder();
    private static final LongAdder ALLOCATION_NS = new LongAdder();
    private static final Queue<Kept> RETAINED = new ConcurrentLinkedQueue<>();
    private static final AtomicBoolean ENDED = new AtomicBoolean();
    private static final Allocators ALLOCATORS = new Allocators();

    @Name("ingestbench.DirectAllocation")
    @Label("Direct Allocation")
    @Enabled(false)
    @StackTrace(false)
    public static final class Allocation extends Event {
        @Label("Size")
        @DataAmount
        public long bytes;

        @Label("Time")
        @Timespan(Timespan.NANOSECONDS)
        public long took;
    }

    /** A buffer that is no garbage yet. */
    private static final class Kept {
        final ByteBuffer buffer;
        final long untilNs;

        Kept(ByteBuffer buffer, long untilNs) {
            this.buffer = buffer;
            this.untilNs = untilNs;
        }
    }

    public static void main(String[] arguments) {
        Answers.start(DirectMemory::serve);
    }

    private static void serve() throws Exception {
        // Alone it has one event loop: a client that has gone is then noticed before the next question is answered.
        new ServerBootstrap()
            .group(new NioEventLoopGroup(FED ? THREADS : 1))
            .channel(NioServerSocketChannel.class)
            .option(ChannelOption.SO_REUSEADDR, true)
            .option(ChannelOption.SO_BACKLOG, 1024)
            .childOption(ChannelOption.TCP_NODELAY, true)
            .childOption(ChannelOption.ALLOCATOR, new UnpooledByteBufAllocator(false))
            .childOption(ChannelOption.RCVBUF_ALLOCATOR, new HeapReads())
            .childHandler(new ChannelInitializer<SocketChannel>() {
                @Override
                protected void initChannel(SocketChannel channel) {
                    channel.pipeline().addLast(new HttpServerCodec(4096, 8192, 1 << 20), new Requests());
                }
            })
            .bind(HOST, PORT).sync();
        System.out.println("direct-memory: listens on " + HOST + ":" + PORT);
    }

    /** A direct buffer, which is garbage as soon as its user lets it go, or `direct.retain` later. */
    private static ByteBuffer allocate(int bytes) {
        Allocation event = new Allocation();
        long from = System.nanoTime();
        ByteBuffer buffer;
        try {
            buffer = ByteBuffer.allocateDirect(bytes);
        } catch (OutOfMemoryError error) {
            end(error);
            throw error;
        }
        long now = System.nanoTime();
        long took = now - from;
        event.bytes = bytes;
        event.took = took;
        event.commit();
        ALLOCATIONS.increment();
        ALLOCATED_BYTES.add(bytes);
        ALLOCATION_NS.add(took);
        if (RETAIN_NS > 0) {
            RETAINED.add(new Kept(buffer, now + RETAIN_NS));
            for (Kept oldest = RETAINED.peek(); oldest != null && oldest.untilNs - now <= 0; oldest = RETAINED.peek()) {
                RETAINED.remove(oldest);
            }
        }
        return buffer;
    }

    /** No more of anything: the end of a server that ran out of memory, its recording included. */
    private static void end(OutOfMemoryError error) {
        if (ENDED.compareAndSet(false, true)) {
            error.printStackTrace();
            RETAINED.clear();
            new Thread(() -> System.exit(3), "end").start();
        }
    }

    /** The threads that allocate, as long as there are clients. */
    private static final class Allocators {
        private final List<Thread> threads = new ArrayList<>();
        private volatile boolean wanted;
        private int clients;

        synchronized void enter() {
            clients++;
            if (clients == 1) {
                join();
                wanted = true;
                for (int number = 0; number < THREADS; number++) {
                    Thread thread = new Thread(this::run, "allocates-" + number);
                    thread.setDaemon(true);
                    threads.add(thread);
                    thread.start();
                }
            }
        }

        synchronized void leave() {
            clients--;
            wanted = clients > 0;
        }

        /** When nobody wants more: waits until the last allocation is done and counted. */
        synchronized void settle() {
            if (!wanted) {
                join();
            }
        }

        private void join() {
            for (Thread thread : threads) {
                try {
                    thread.join();
                } catch (InterruptedException interrupted) {
                    Thread.currentThread().interrupt();
                    return;
                }
            }
            threads.clear();
        }

        private void run() {
            ThreadLocalRandom random = ThreadLocalRandom.current();
            while (wanted && !ENDED.get()) {
                allocate(random.nextInt(SMALLEST_BYTES, LARGEST_BYTES + 1));
            }
        }
    }

    /** Reads on the heap: nothing of Netty's is in direct memory. */
    private static final class HeapReads extends FixedRecvByteBufAllocator {
        HeapReads() {
            super(READ_BYTES);
        }

        @Override
        public Handle newHandle() {
            return new HeapHandle(super.newHandle());
        }
    }

    private static final class HeapHandle extends RecvByteBufAllocator.DelegatingHandle
        implements RecvByteBufAllocator.ExtendedHandle {
        HeapHandle(RecvByteBufAllocator.Handle handle) {
            super(handle);
        }

        @Override
        public ByteBuf allocate(ByteBufAllocator allocator) {
            // Not ioBuffer(): that is off the heap wherever Netty finds Unsafe.
            return allocator.heapBuffer(delegate().guess());
        }

        @Override
        public boolean continueReading(UncheckedBooleanSupplier mayHaveMore) {
            return ((RecvByteBufAllocator.ExtendedHandle) delegate()).continueReading(mayHaveMore);
        }
    }

    /** One connection's requests, one after the other. A document is a line. */
    private static final class Requests extends SimpleChannelInboundHandler<HttpObject> {
        private HttpRequest request;
        private ByteBuffer body;
        private long documents;
        private boolean isClient;

        @Override
        protected void channelRead0(ChannelHandlerContext context, HttpObject part) {
            if (part.decoderResult().isFailure()) {
                Answers.respond(context, false, HttpResponseStatus.BAD_REQUEST, part.decoderResult().cause().toString());
                return;
            }
            if (part instanceof HttpRequest) {
                begin(context, (HttpRequest) part);
            }
            if (request != null && part instanceof HttpContent) {
                if (request.method() == HttpMethod.POST) {
                    take(((HttpContent) part).content());
                }
                if (part instanceof LastHttpContent) {
                    end(context);
                }
            }
        }

        private void begin(ChannelHandlerContext context, HttpRequest next) {
            request = next;
            documents = 0;
            if (next.method() != HttpMethod.POST) {
                return;
            }
            long length = HttpUtil.getContentLength(next, -1L);
            if (length < 0 || length > Integer.MAX_VALUE) {
                request = null;
                Answers.respond(context, false, HttpResponseStatus.LENGTH_REQUIRED, "a body of up to 2 GiB, with its length");
                return;
            }
            if (FED) {
                body = allocate((int) length);
            } else if (!isClient) {
                isClient = true;
                ALLOCATORS.enter();
            }
        }

        private void take(ByteBuf content) {
            int at = content.readerIndex();
            int end = content.writerIndex();
            if (body != null) {
                body.limit(body.position() + end - at);
                content.getBytes(at, body);
            }
            for (int feed = content.indexOf(at, end, (byte) '\n'); feed >= 0; feed = content.indexOf(feed + 1, end, (byte) '\n')) {
                documents++;
            }
        }

        private void end(ChannelHandlerContext context) {
            boolean alive = HttpUtil.isKeepAlive(request);
            HttpRequest whole = request;
            request = null;
            body = null;
            if (whole.method() == HttpMethod.POST) {
                DOCUMENTS.add(documents);
                Answers.respond(context, alive, HttpResponseStatus.OK, "");
                return;
            }
            switch (whole.uri()) {
                case "/":
                    Answers.respond(context, alive, HttpResponseStatus.OK, whole.method() == HttpMethod.HEAD ? "" : about());
                    break;
                case "/_count":
                    Answers.respond(context, alive, HttpResponseStatus.OK, "{\"count\":" + DOCUMENTS.sum() + "}");
                    break;
                case "/_counters":
                    ALLOCATORS.settle();
                    Answers.respond(context, alive, HttpResponseStatus.OK, counters());
                    break;
                default:
                    Answers.respond(context, alive, HttpResponseStatus.NOT_FOUND, "{\"status\":404}");
            }
        }

        @Override
        public void channelInactive(ChannelHandlerContext context) {
            body = null;
            if (isClient) {
                isClient = false;
                ALLOCATORS.leave();
            }
        }

        @Override
        public void exceptionCaught(ChannelHandlerContext context, Throwable cause) {
            if (!(cause instanceof java.io.IOException || cause instanceof OutOfMemoryError)) {
                cause.printStackTrace();
            }
            context.close();
        }
    }

    private static String counters() {
        return "{\"documents\":" + DOCUMENTS.sum() + ",\"direct_allocations\":" + ALLOCATIONS.sum() + ",\"direct_allocated_bytes\":"
            + ALLOCATED_BYTES.sum() + ",\"direct_allocation_ns\":" + ALLOCATION_NS.sum() + "}";
    }

    private static String about() {
        return "{\"name\":\"direct-memory\",\"version\":{\"number\":\"" + System.getProperty("java.version") + "\"},"
            + Answers.jvm() + ",\"mode\":\"" + (FED ? "fed" : "alone")
            + "\",\"threads\":" + THREADS + ",\"retain_ns\":" + RETAIN_NS + "}";
    }

    private DirectMemory() {
    }
}
