import io.netty.bootstrap.ServerBootstrap;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufAllocator;
import io.netty.buffer.ByteBufAllocatorMetric;
import io.netty.buffer.ByteBufAllocatorMetricProvider;
import io.netty.buffer.PooledByteBufAllocator;
import io.netty.buffer.Unpooled;
import io.netty.buffer.UnpooledByteBufAllocator;
import io.netty.channel.AdaptiveRecvByteBufAllocator;
import io.netty.channel.ChannelFutureListener;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInitializer;
import io.netty.channel.ChannelOption;
import io.netty.channel.EventLoopGroup;
import io.netty.channel.FixedRecvByteBufAllocator;
import io.netty.channel.RecvByteBufAllocator;
import io.netty.channel.SimpleChannelInboundHandler;
import io.netty.channel.epoll.EpollEventLoopGroup;
import io.netty.channel.epoll.EpollServerSocketChannel;
import io.netty.channel.nio.NioEventLoopGroup;
import io.netty.channel.socket.SocketChannel;
import io.netty.channel.socket.nio.NioServerSocketChannel;
import io.netty.handler.codec.http.HttpContent;
import io.netty.handler.codec.http.HttpHeaderValues;
import io.netty.handler.codec.http.HttpMethod;
import io.netty.handler.codec.http.HttpObject;
import io.netty.handler.codec.http.HttpRequest;
import io.netty.handler.codec.http.HttpResponseStatus;
import io.netty.handler.codec.http.HttpServerCodec;
import io.netty.handler.codec.http.HttpServerExpectContinueHandler;
import io.netty.handler.codec.http.HttpUtil;
import io.netty.handler.codec.http.LastHttpContent;
import io.netty.util.UncheckedBooleanSupplier;
import io.netty.util.Version;
import io.netty.util.concurrent.EventExecutor;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.LongAdder;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.management.ObjectName;
import javax.management.StandardMBean;
import jdk.jfr.Event;
import jdk.jfr.FlightRecorder;
import jdk.jfr.Name;
import jdk.jfr.StackTrace;

/**
 * A server that takes bulk requests, counts what it reads and answers at once: the null member of the targets and the
 * ground truth of the probes. Its counts are kept where Netty asks for the buffer of a read and says what it got.
 * Options are system properties "sink.*".
 */
public final class NettySink {
    private static final String HOST = System.getProperty("sink.host", "127.0.0.1");
    private static final int PORT = Integer.getInteger("sink.port", 9200);
    private static final int THREADS = Integer.getInteger("sink.threads", 2);
    /** "65536": fixed. "4096..524288": adaptive between them. */
    private static final String RECEIVE = System.getProperty("sink.receive", "65536");
    private static final String ALLOCATOR = System.getProperty("sink.allocator", "unpooled");
    private static final boolean DIRECT = "direct".equals(System.getProperty("sink.buffers", "heap"));
    /** Netty's own transport, in C: the flight recorder sees none of its reads. It reads into direct buffers only. */
    private static final boolean EPOLL = "epoll".equals(System.getProperty("sink.transport", "nio"));
    private static final int RCVBUF = Integer.getInteger("sink.rcvbuf", 0);
    private static final long MAX_CONTENT_LENGTH = Long.getLong("sink.max_content_length", 100L << 20);
    /** Keep the buffers of a body until it is whole, as a server that aggregates requests does. */
    private static final boolean HOLD = Boolean.getBoolean("sink.hold");

    private static final long STALL_NS = Long.getLong("sink.stall_ns", 0);
    private static final long STALL_AFTER_NS = Long.getLong("sink.stall_after_ns", 0);
    private static final long STALL_EVERY_NS = Long.getLong("sink.stall_every_ns", 0);
    private static final long LOCK_NS = Long.getLong("sink.lock_ns", 0);
    private static final long LOCK_AFTER_NS = Long.getLong("sink.lock_after_ns", 0);
    private static final long LOCK_EVERY_NS = Long.getLong("sink.lock_every_ns", 0);
    /** Needed for the answer to a bulk where "sink.lock" is given. */
    private static final Object LOCK = new Object();
    private static final long DELAY_NS = Long.getLong("sink.delay_ns", 0);
    private static final Share REJECT = new Share("sink.reject_ppm");
    private static final Share CLOSE = new Share("sink.close_ppm");
    private static final Share BROKEN = new Share("sink.broken_ppm");
    private static final Share SILENT = new Share("sink.silent_ppm");
    private static final Share UNAVAILABLE = new Share("sink.unavailable_ppm");
    /** Carried out, and closed in place of the answer. */
    private static final Share UNHEARD = new Share("sink.unheard_ppm");

    private static final byte[] ACCEPTED = ascii("{\"index\":{\"status\":201}}");
    private static final byte[] REJECTED = ascii(
        "{\"index\":{\"status\":429,\"error\":{\"type\":\"es_rejected_execution_exception\",\"reason\":\"sink.reject\"}}}");

    /** {"index":{}} without its brace: a longer action line may have an id. */
    private static final int NO_ID_BYTES = 12;
    private static final byte[] NO_ID = ascii("{\"index\":{\"status\":201,\"result\":\"created\"}}");

    private static final String SHARDS = "{\"_shards\":{\"total\":1,\"successful\":1,\"failed\":0}}";

    /** Netty looks for it in every one of its jars, which takes milliseconds. */
    private static final String NETTY = Version.identify().get("netty-common").artifactVersion();

    private static final LongAdder DOCUMENTS = new LongAdder();
    private static final LongAdder BULKS = new LongAdder();
    private static final Map<Integer, Reads> READS = new ConcurrentHashMap<>();
    private static final Map<String, LongAdder> INDICES = new ConcurrentHashMap<>();
    /** The documents that were given an id, each by its index and id. */
    private static final Set<String> KNOWN = ConcurrentHashMap.newKeySet();
    private static final AtomicBoolean STALLS = new AtomicBoolean(STALL_NS > 0 || LOCK_NS > 0);

    private static EventLoopGroup loops;

    public static void main(String[] arguments) {
        Answers.start(NettySink::serve);
    }

    private static void serve() throws Exception {
        // Refused now, and not for each connection anew.
        receiveBuffers(new Reads());
        loops = EPOLL ? new EpollEventLoopGroup(THREADS) : new NioEventLoopGroup(THREADS);
        ByteBufAllocator allocator = allocator();
        // Before 4.1.116 the adaptive allocator counts chunks that it has freed.
        if (!ALLOCATOR.equals("adaptive") || !NETTY.matches("4\\.1\\.11[0-5]\\..*")) {
            AllocatorMemory memory = new AllocatorMemory(allocator);
            ManagementFactory.getPlatformMBeanServer().registerMBean(
                new StandardMBean(memory, AllocatorMBean.class), new ObjectName("ingestbench:type=NettyAllocator"));
            FlightRecorder.addPeriodicEvent(NettyMemory.class, memory::record);
        }
        ServerBootstrap bootstrap = new ServerBootstrap()
            .group(loops)
            .channel(EPOLL ? EpollServerSocketChannel.class : NioServerSocketChannel.class)
            .option(ChannelOption.SO_REUSEADDR, true)
            .option(ChannelOption.SO_BACKLOG, 1024)
            .childOption(ChannelOption.TCP_NODELAY, true)
            .childOption(ChannelOption.ALLOCATOR, allocator)
            .childHandler(new ChannelInitializer<SocketChannel>() {
                @Override
                protected void initChannel(SocketChannel channel) {
                    Reads counted = READS.computeIfAbsent(channel.remoteAddress().getPort(), key -> new Reads());
                    channel.config().setRecvByteBufAllocator(receiveBuffers(counted));
                    channel.pipeline().addLast(
                        new HttpServerCodec(4096, 8192, 1 << 20), new HttpServerExpectContinueHandler(), new Requests());
                }
            });
        if (RCVBUF > 0) {
            // On the listening socket: connections inherit it before their window is announced.
            bootstrap.option(ChannelOption.SO_RCVBUF, RCVBUF);
        }
        bootstrap.bind(HOST, PORT).sync();
        System.out.println("sink: listens on " + HOST + ":" + PORT);
    }

    private static ByteBufAllocator allocator() throws ReflectiveOperationException {
        switch (ALLOCATOR) {
            case "pooled":
                return new PooledByteBufAllocator(DIRECT);
            case "adaptive":
                // By its name: this class is compiled with Netty before 4.1.110 too, which lacks it.
                return (ByteBufAllocator) Class.forName("io.netty.buffer.AdaptiveByteBufAllocator")
                    .getConstructor(boolean.class).newInstance(DIRECT);
            default:
                return new UnpooledByteBufAllocator(DIRECT);
        }
    }

    /** Bytes of the allocator's chunks and of its buffers in use, on the heap and off it. */
    public interface AllocatorMBean {
        long getChunkBytes();

        /** -1 if unknown. */
        long getBufferBytes();
    }

    /** The same in a recording: Netty writes events of its own only since 4.2.3, and none of unpooled buffers. */
    @Name("ingestbench.NettyMemory")
    @StackTrace(false)
    public static final class NettyMemory extends Event {
        public long chunkBytes;
        public long bufferBytes;
    }

    /** An unpooled buffer is a chunk of its own. Of the adaptive allocator Netty knows the chunks only. */
    private static final class AllocatorMemory implements AllocatorMBean {
        private final ByteBufAllocator allocator;
        private final ByteBufAllocatorMetric metric;

        AllocatorMemory(ByteBufAllocator allocator) {
            this.allocator = allocator;
            metric = ((ByteBufAllocatorMetricProvider) allocator).metric();
        }

        @Override
        public long getChunkBytes() {
            return metric.usedHeapMemory() + metric.usedDirectMemory();
        }

        @Override
        public long getBufferBytes() {
            if (allocator instanceof PooledByteBufAllocator) {
                PooledByteBufAllocator pooled = (PooledByteBufAllocator) allocator;
                return pooled.pinnedHeapMemory() + pooled.pinnedDirectMemory();
            }
            return allocator instanceof UnpooledByteBufAllocator ? getChunkBytes() : -1;
        }

        void record() {
            NettyMemory event = new NettyMemory();
            event.chunkBytes = getChunkBytes();
            event.bufferBytes = getBufferBytes();
            event.commit();
        }
    }

    private static RecvByteBufAllocator receiveBuffers(Reads counted) {
        String[] sizes = RECEIVE.split("\\.\\.");
        int smallest = Integer.parseInt(sizes[0]);
        if (sizes.length == 1) {
            return new FixedRecvByteBufAllocator(smallest) {
                @Override
                public Handle newHandle() {
                    return new CountingBuffers(super.newHandle(), counted);
                }
            };
        }
        // The first buffer is the smallest, as Elasticsearch 5 has it: AdaptiveRecvByteBufAllocator(min, min, max).
        return new AdaptiveRecvByteBufAllocator(smallest, smallest, Integer.parseInt(sizes[1])) {
            @Override
            public Handle newHandle() {
                return new CountingBuffers(super.newHandle(), counted);
            }
        };
    }

    /** What was read on the connections of one peer port. */
    private static final class Reads {
        final AtomicLong reads = new AtomicLong();
        final AtomicLong bytes = new AtomicLong();
        final AtomicLong buffers = new AtomicLong();
        final AtomicLong bufferBytes = new AtomicLong();
    }

    /**
     * Asks for the buffer of each socket read, on the heap or off it as chosen, and counts it and what the read got.
     * Netty comes here with every transport: it takes one buffer for each read, and says what was read into it.
     */
    private static final class CountingBuffers extends RecvByteBufAllocator.DelegatingHandle
        implements RecvByteBufAllocator.ExtendedHandle {
        private final Reads counted;

        CountingBuffers(RecvByteBufAllocator.Handle handle, Reads counted) {
            super(handle);
            this.counted = counted;
        }

        @Override
        public ByteBuf allocate(ByteBufAllocator allocator) {
            // Not ioBuffer(): that is off the heap wherever Netty finds Unsafe.
            int size = delegate().guess();
            counted.buffers.incrementAndGet();
            counted.bufferBytes.addAndGet(size);
            return DIRECT ? allocator.directBuffer(size) : allocator.heapBuffer(size);
        }

        @Override
        public void lastBytesRead(int bytes) {
            if (bytes > 0) {
                counted.reads.incrementAndGet();
                counted.bytes.addAndGet(bytes);
            }
            super.lastBytesRead(bytes);
        }

        @Override
        public boolean continueReading(UncheckedBooleanSupplier mayHaveMore) {
            return ((RecvByteBufAllocator.ExtendedHandle) delegate()).continueReading(mayHaveMore);
        }
    }

    /** A share of events, spread evenly and the same in each run. */
    private static final class Share {
        private final long ppm;
        private final AtomicLong events = new AtomicLong();

        Share(String property) {
            ppm = Long.getLong(property, 0);
        }

        boolean next() {
            if (ppm == 0) {
                return false;
            }
            long event = events.incrementAndGet();
            return event * ppm / 1_000_000 != (event - 1) * ppm / 1_000_000;
        }
    }

    /**
     * Counts the documents of a bulk body as it passes: an action line, and a source line unless it deletes. Of one with
     * ids it keeps the actions, for the answer says of each what became of it.
     */
    private static final class BulkBody {
        private static final Pattern WORD = Pattern.compile("\"(index|create|update|delete)\"");
        private static final Pattern ID = Pattern.compile("\"_id\"\\s*:\\s*\"((?:[^\"\\\\]|\\\\.)*)\"");
        private static final Pattern INDEX = Pattern.compile("\"_index\"\\s*:\\s*\"((?:[^\"\\\\]|\\\\.)*)\"");

        long documents;
        /** For each item null (it has no id), or its action, its index (empty: the path's) and its id; no list: none has one. */
        List<String[]> actions;
        private boolean inSource;
        private boolean deletes;
        private int letters;
        private byte[] line = new byte[256];
        private int filled;

        void add(ByteBuf part) {
            int at = part.readerIndex();
            int end = part.writerIndex();
            while (at < end) {
                if (!inSource && letters < 3) {
                    actionByte(part.getByte(at++));
                    continue;
                }
                int feed = part.indexOf(at, end, (byte) '\n');
                if (!inSource) {
                    keep(part, at, (feed < 0 ? end : feed) - at);
                }
                if (feed < 0) {
                    return;
                }
                at = feed + 1;
                if (!inSource) {
                    note();
                }
                documents += inSource || deletes ? 1 : 0;
                inSource = !inSource && !deletes;
                letters = 0;
            }
        }

        private void keep(ByteBuf part, int at, int length) {
            if (filled + length > line.length) {
                line = Arrays.copyOf(line, 2 * (filled + length));
            }
            part.getBytes(at, line, filled, length);
            filled += length;
        }

        /** An action line has ended. Without an id it is not looked at. */
        private void note() {
            String text = filled > NO_ID_BYTES ? new String(line, 0, filled, StandardCharsets.UTF_8) : "";
            filled = 0;
            Matcher id = ID.matcher(text);
            boolean has = id.find();
            if (has && actions == null) {
                actions = new ArrayList<>(Collections.nCopies((int) documents, null));
            }
            if (actions != null) {
                Matcher word = WORD.matcher(text);
                Matcher index = INDEX.matcher(text);
                actions.add(has && word.find() ? new String[] {word.group(1), index.find() ? index.group(1) : "", id.group(1)} : null);
            }
        }

        /** The first letters of an action line say what it is: {"d is a delete. Empty lines do not count. */
        private void actionByte(byte one) {
            if (one == '\n') {
                letters = 0;
                filled = 0;
            } else if (one != ' ') {
                letters++;
                deletes = letters == 3 && one == 'd';
                if (filled == line.length) {
                    line = Arrays.copyOf(line, 2 * filled);
                }
                line[filled++] = one;
            }
        }
    }

    /** One connection's requests, one after the other. */
    private static final class Requests extends SimpleChannelInboundHandler<HttpObject> {
        private final List<ByteBuf> held = new ArrayList<>();
        private HttpRequest request;
        private BulkBody bulk;
        private long closeAfterBytes;
        private long bodyBytes;

        @Override
        protected void channelRead0(ChannelHandlerContext context, HttpObject part) {
            if (!context.channel().isActive()) {
                // Requests that came before the connection broke: nobody waits for their answers.
                return;
            }
            if (part.decoderResult().isFailure()) {
                Answers.respond(context, false, HttpResponseStatus.BAD_REQUEST, "{\"error\":\"" + part.decoderResult().cause().getClass() + "\"}");
                return;
            }
            if (part instanceof HttpRequest) {
                begin(context, (HttpRequest) part);
            }
            if (request != null && part instanceof HttpContent) {
                ByteBuf content = ((HttpContent) part).content();
                bodyBytes += content.readableBytes();
                if (bulk != null) {
                    bulk.add(content);
                    if (HOLD) {
                        held.add(content.retain());
                    }
                    if (closeAfterBytes > 0 && bodyBytes >= closeAfterBytes) {
                        request = null;
                        context.close();
                        return;
                    }
                }
                if (part instanceof LastHttpContent) {
                    end(context);
                }
            }
        }

        private void begin(ChannelHandlerContext context, HttpRequest next) {
            long length = HttpUtil.getContentLength(next, 0L);
            request = next;
            bodyBytes = 0;
            bulk = null;
            closeAfterBytes = 0;
            if (length > MAX_CONTENT_LENGTH) {
                request = null;
                Answers.respond(context, false, HttpResponseStatus.REQUEST_ENTITY_TOO_LARGE, "{\"status\":413}");
                return;
            }
            if (next.method() == HttpMethod.POST && path(next).endsWith("_bulk")) {
                bulk = new BulkBody();
                closeAfterBytes = CLOSE.next() ? Math.max(1, length / 2) : 0;
                if (STALLS.compareAndSet(true, false)) {
                    if (STALL_NS > 0) {
                        planStalls();
                    }
                    if (LOCK_NS > 0) {
                        holdLock();
                    }
                }
            }
        }

        private void end(ChannelHandlerContext context) {
            boolean alive = HttpUtil.isKeepAlive(request);
            HttpRequest whole = request;
            request = null;
            release();
            if (bulk == null) {
                control(context, alive, whole.method(), path(whole));
            } else if (BROKEN.next()) {
                // Past the codec: it refuses to write what it did not encode.
                ByteBuf nonsense = Unpooled.copiedBuffer("this is not HTTP\r\n\r\n", StandardCharsets.US_ASCII);
                context.pipeline().firstContext().writeAndFlush(nonsense).addListener(ChannelFutureListener.CLOSE);
            } else if (UNAVAILABLE.next()) {
                Answers.respond(context, alive, HttpResponseStatus.SERVICE_UNAVAILABLE,
                    "{\"error\":{\"type\":\"unavailable_shards_exception\",\"reason\":\"sink.unavailable\"},\"status\":503}");
            } else if (!SILENT.next()) {
                ByteBuf answer;
                if (LOCK_NS > 0) {
                    synchronized (LOCK) {
                        answer = bulkAnswer(path(whole));
                    }
                } else {
                    answer = bulkAnswer(path(whole));
                }
                if (UNHEARD.next()) {
                    answer.release();
                    context.close();
                    return;
                }
                if (DELAY_NS > 0) {
                    context.executor().schedule(() -> respond(context, alive, answer), DELAY_NS, TimeUnit.NANOSECONDS);
                } else {
                    respond(context, alive, answer);
                }
            }
        }

        private ByteBuf bulkAnswer(String path) {
            long documents = bulk.documents;
            long rejected = 0;
            long added = 0;
            boolean failed = false;
            ByteBuf items = Unpooled.buffer((int) (documents * (ACCEPTED.length + 1) + 64));
            for (long item = 0; item < documents; item++) {
                if (item > 0) {
                    items.writeByte(',');
                }
                boolean refuse = REJECT.next();
                rejected += refuse ? 1 : 0;
                String[] action = bulk.actions == null ? null : bulk.actions.get((int) item);
                if (refuse) {
                    items.writeBytes(REJECTED);
                } else if (action == null) {
                    added++;
                    items.writeBytes(bulk.actions == null ? ACCEPTED : NO_ID);
                } else {
                    String result = carriedOut(action, index(path));
                    added += result.equals("created") ? 1 : result.equals("deleted") ? -1 : 0;
                    failed |= result.endsWith("exception");
                    items.writeBytes(told(action[0], result));
                }
            }
            items.writeBytes(ascii("]}"));
            BULKS.increment();
            DOCUMENTS.add(added);
            INDICES.computeIfAbsent(index(path), key -> new LongAdder()).add(added);
            byte[] head = ascii("{\"took\":0,\"errors\":" + (failed || rejected > 0) + ",\"items\":[");
            return Unpooled.wrappedBuffer(Unpooled.wrappedBuffer(head), items);
        }

        /** What became of an item with an id: its result, or the type of its error. */
        private static String carriedOut(String[] action, String index) {
            String document = (action[1].isEmpty() ? index : action[1]) + "/" + action[2];
            switch (action[0]) {
                case "delete":
                    return KNOWN.remove(document) ? "deleted" : "not_found";
                case "update":
                    return KNOWN.contains(document) ? "updated" : "document_missing_exception";
                case "create":
                    return KNOWN.add(document) ? "created" : "version_conflict_engine_exception";
                default:
                    return KNOWN.add(document) ? "created" : "updated";
            }
        }

        private static byte[] told(String action, String result) {
            if (result.endsWith("exception")) {
                int status = result.startsWith("version") ? 409 : 404;
                return ascii("{\"" + action + "\":{\"status\":" + status + ",\"error\":{\"type\":\"" + result + "\"}}}");
            }
            int status = result.equals("created") ? 201 : result.equals("not_found") ? 404 : 200;
            return ascii("{\"" + action + "\":{\"status\":" + status + ",\"result\":\"" + result + "\"}}");
        }

        @Override
        public void channelInactive(ChannelHandlerContext context) {
            release();
        }

        @Override
        public void exceptionCaught(ChannelHandlerContext context, Throwable cause) {
            if (!(cause instanceof java.io.IOException)) {
                cause.printStackTrace();
            }
            release();
            context.close();
        }

        private void release() {
            held.forEach(ByteBuf::release);
            held.clear();
        }
    }

    private static void control(ChannelHandlerContext context, boolean alive, HttpMethod method, String path) {
        String answer;
        if (path.equals("/_counters")) {
            answer = counters();
        } else if (path.endsWith("/_count")) {
            LongAdder counted = INDICES.get(index(path));
            answer = "{\"count\":" + (path.equals("/_count") ? DOCUMENTS.sum() : counted == null ? 0 : counted.sum()) + "}";
        } else if (path.endsWith("/_refresh")) {
            answer = SHARDS;
        } else if (path.endsWith("/_forcemerge")) {
            answer = SHARDS;
        } else if (path.startsWith("/_cluster/health")) {
            answer = "{\"status\":\"green\",\"timed_out\":false}";
        } else if (path.endsWith("/_search")) {
            answer = "{\"took\":0,\"timed_out\":false," + SHARDS.substring(1, SHARDS.length() - 1) + ",\"hits\":{\"hits\":[]}}";
        } else if (path.endsWith("/_stats")) {
            answer = "{\"_all\":{\"total\":{\"merges\":{\"current\":0}}}}";
        } else if (method == HttpMethod.PUT) {
            answer = "{\"acknowledged\":true,\"shards_acknowledged\":true,\"index\":\"" + index(path) + "\"}";
        } else if (path.equals("/")) {
            answer = method == HttpMethod.HEAD ? "" : about(context);
        } else {
            Answers.respond(context, alive, HttpResponseStatus.NOT_FOUND, "{\"status\":404}");
            return;
        }
        Answers.respond(context, alive, HttpResponseStatus.OK, answer);
    }

    private static String counters() {
        long reads = 0;
        long bytes = 0;
        long buffers = 0;
        long bufferBytes = 0;
        StringBuilder connections = new StringBuilder();
        for (Map.Entry<Integer, Reads> entry : READS.entrySet()) {
            long its = entry.getValue().reads.get();
            long itsBytes = entry.getValue().bytes.get();
            long itsBuffers = entry.getValue().buffers.get();
            long itsBufferBytes = entry.getValue().bufferBytes.get();
            reads += its;
            bytes += itsBytes;
            buffers += itsBuffers;
            bufferBytes += itsBufferBytes;
            connections.append(connections.length() == 0 ? "" : ",").append('"').append(entry.getKey())
                .append("\":{\"reads\":").append(its).append(",\"bytes_read\":").append(itsBytes)
                .append(",\"buffers_allocated\":").append(itsBuffers)
                .append(",\"buffer_bytes_allocated\":").append(itsBufferBytes).append('}');
        }
        return "{\"reads\":" + reads + ",\"bytes_read\":" + bytes + ",\"documents\":" + DOCUMENTS.sum() + ",\"bulks\":" + BULKS.sum()
            + ",\"buffers_allocated\":" + buffers + ",\"buffer_bytes_allocated\":" + bufferBytes
            + ",\"by_peer_port\":{" + connections + "}}";
    }

    private static String about(ChannelHandlerContext context) {
        return "{\"name\":\"sink\",\"version\":{\"number\":\"" + NETTY + "\"},"
            + Answers.jvm() + ",\"receive\":\"" + RECEIVE + "\",\"allocator\":\"" + ALLOCATOR + "\",\"buffers\":\""
            + (DIRECT ? "direct" : "heap") + "\",\"transport\":\"" + (EPOLL ? "epoll" : "nio") + "\",\"socket_receive_buffer_bytes\":"
            + ((SocketChannel) context.channel()).config().getReceiveBufferSize() + "}";
    }

    /** Every event loop sleeps at the same moments, as in a stop of the whole world: nothing is read either. */
    private static void planStalls() {
        for (EventExecutor loop : loops) {
            Runnable stall = () -> {
                Instant from = Instant.now();
                try {
                    TimeUnit.NANOSECONDS.sleep(STALL_NS);
                    System.out.println("sink.stall " + from + " " + Instant.now());
                } catch (InterruptedException interrupted) {
                    Thread.currentThread().interrupt();
                }
            };
            if (STALL_EVERY_NS > 0) {
                loop.scheduleAtFixedRate(stall, STALL_AFTER_NS, STALL_EVERY_NS, TimeUnit.NANOSECONDS);
            } else {
                loop.schedule(stall, STALL_AFTER_NS, TimeUnit.NANOSECONDS);
            }
        }
    }

    /** A thread of its own holds the lock that each bulk needs, and says from when to when (CLOCK_REALTIME). */
    private static void holdLock() {
        Thread holder = new Thread(() -> {
            try {
                TimeUnit.NANOSECONDS.sleep(LOCK_AFTER_NS);
                do {
                    Instant from;
                    synchronized (LOCK) {
                        from = Instant.now();
                        TimeUnit.NANOSECONDS.sleep(LOCK_NS);
                    }
                    System.out.println("sink.lock " + from + " " + Instant.now());
                    TimeUnit.NANOSECONDS.sleep(LOCK_EVERY_NS - LOCK_NS);
                } while (LOCK_EVERY_NS > 0);
            } catch (InterruptedException interrupted) {
                Thread.currentThread().interrupt();
            }
        }, "lock-holder");
        holder.setDaemon(true);
        holder.start();
    }

    private static void respond(ChannelHandlerContext context, boolean alive, ByteBuf json) {
        Answers.respond(context, alive, HttpResponseStatus.OK, json, HttpHeaderValues.APPLICATION_JSON);
    }

    private static String path(HttpRequest request) {
        String uri = request.uri();
        int query = uri.indexOf('?');
        return query < 0 ? uri : uri.substring(0, query);
    }

    /** The first part of a path; empty when that is an action of the whole server. */
    private static String index(String path) {
        String first = path.substring(1).split("/", 2)[0];
        return first.startsWith("_") ? "" : first;
    }

    private static byte[] ascii(String text) {
        return text.getBytes(StandardCharsets.US_ASCII);
    }

    private NettySink() {
    }
}
