import io.netty.bootstrap.Bootstrap;
import io.netty.bootstrap.ServerBootstrap;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import io.netty.channel.ChannelFuture;
import io.netty.channel.ChannelFutureListener;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInitializer;
import io.netty.channel.ChannelOption;
import io.netty.channel.EventLoopGroup;
import io.netty.channel.SimpleChannelInboundHandler;
import io.netty.channel.nio.NioEventLoopGroup;
import io.netty.channel.socket.SocketChannel;
import io.netty.channel.socket.nio.NioServerSocketChannel;
import io.netty.channel.socket.nio.NioSocketChannel;
import io.netty.handler.codec.http.DefaultFullHttpRequest;
import io.netty.handler.codec.http.FullHttpRequest;
import io.netty.handler.codec.http.FullHttpResponse;
import io.netty.handler.codec.http.HttpClientCodec;
import io.netty.handler.codec.http.HttpHeaderNames;
import io.netty.handler.codec.http.HttpMethod;
import io.netty.handler.codec.http.HttpObjectAggregator;
import io.netty.handler.codec.http.HttpResponseStatus;
import io.netty.handler.codec.http.HttpServerCodec;
import io.netty.handler.codec.http.HttpUtil;
import io.netty.handler.codec.http.HttpVersion;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.Collection;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.LongAdder;
import java.util.function.Consumer;

/**
 * A node of several that share documents by a key, as the peer forwarder of Data Prepper does. Options are system
 * properties "forwarder.*".
 *
 * <p>A document that was accepted waits in the source buffer. A worker takes a batch of it, keeps what is this node's by
 * the hash of the key, and sends the rest to its owners in batches of the forwarding size. What peers send waits in the
 * receive buffer, of which the worker takes a batch in each of its rounds. Delivered is what it kept or received. A
 * batch that a peer did not take is processed here, if the receive buffer has room for it, and dropped if not.
 */
public final class Forwarder {
    private static final String HOST = System.getProperty("forwarder.host", "127.0.0.1");
    private static final int PORT = Integer.getInteger("forwarder.port", 9200);
    private static final int NODE = Integer.getInteger("forwarder.node", 0);
    private static final String[] NODES = System.getProperty("forwarder.nodes", HOST + ":" + PORT).split(",");
    private static final int WORKERS = Integer.getInteger("forwarder.workers", 1);
    private static final int SOURCE_BUFFER_SIZE = Integer.getInteger("forwarder.source_buffer_size", 12_800);
    private static final int SOURCE_BATCH_SIZE = Integer.getInteger("forwarder.source_batch_size", 200);
    private static final int BATCH_SIZE = Integer.getInteger("forwarder.batch_size", 48);
    private static final long BATCH_DELAY_NS = Long.getLong("forwarder.batch_delay_ns", 3_000_000_000L);
    private static final int BUFFER_SIZE = Integer.getInteger("forwarder.buffer_size", 512);
    private static final int FORWARDING_BATCH_SIZE = Integer.getInteger("forwarder.forwarding_batch_size", 1500);
    private static final long FORWARDING_BATCH_TIMEOUT_NS = Long.getLong("forwarder.forwarding_batch_timeout_ns", 3_000_000_000L);
    private static final int CLIENT_THREAD_COUNT = Integer.getInteger("forwarder.client_thread_count", 200);
    private static final long CLIENT_TIMEOUT_NS = Long.getLong("forwarder.client_timeout_ns", 60_000_000_000L);
    private static final long REQUEST_TIMEOUT_NS = Long.getLong("forwarder.request_timeout_ns", 10_000_000_000L);
    private static final boolean BLOCKING = "blocking".equals(System.getProperty("forwarder.waiting", "blocking"));
    private static final boolean ADAPTIVE = "adaptive".equals(System.getProperty("forwarder.receive_delay", "fixed"));
    private static final String KEY = System.getProperty("forwarder.key", "sequence");

    /** Of the time for a request, what a full buffer may take of it (Data Prepper's BUFFER_TIMEOUT_FRACTION). */
    private static final long WRITE_TIMEOUT_NS = REQUEST_TIMEOUT_NS / 10 * 8;
    /** Its failed_forwarding_requests_local_write_timeout. */
    private static final long LOCAL_WRITE_TIMEOUT_NS = 500_000_000L;
    /** How long its buffers wait for a first record where there is no delay. */
    private static final long FIRST_WAIT_NS = 5_000_000L;
    private static final int LARGEST_BODY = 256 << 20;
    private static final String SEQUENCE = "sequence";

    private static final LongAdder ACCEPTED = new LongAdder();
    private static final LongAdder REFUSED = new LongAdder();
    private static final LongAdder KEPT = new LongAdder();
    private static final LongAdder FORWARDED = new LongAdder();
    private static final LongAdder RECEIVED = new LongAdder();
    private static final LongAdder RETURNED = new LongAdder();
    private static final LongAdder UNSURE = new LongAdder();
    private static final LongAdder DELIVERED = new LongAdder();
    private static final LongAdder DROPPED = new LongAdder();
    private static final LongAdder FORWARDS = new LongAdder();
    private static final LongAdder FORWARDS_FAILED = new LongAdder();
    private static final LongAdder READS = new LongAdder();

    private static final Buffer SOURCE = new Buffer(SOURCE_BUFFER_SIZE);
    private static final Buffer RECEIVE = new Buffer(BUFFER_SIZE);
    private static final Ledger LEDGER = new Ledger();
    private static final List<Thread> THREADS = new ArrayList<>();
    private static final Map<Long, Second> SECONDS = new ConcurrentSkipListMap<>();
    /** As many forwards may be under way as Data Prepper has client threads, each of which waits for one answer. */
    private static final Semaphore CLIENTS = new Semaphore(CLIENT_THREAD_COUNT);
    private static final AtomicInteger IN_FLIGHT = new AtomicInteger();
    private static final EventLoopGroup LOOPS = new NioEventLoopGroup(2);
    private static final Peer[] PEERS = new Peer[NODES.length];
    private static volatile boolean halted;

    /** A document on its way. */
    private static final class Document {
        final byte[] text;
        final long sequence;
        /** System.nanoTime(): on Linux CLOCK_MONOTONIC, which is the same for all processes of a machine. */
        final long acceptedNs;

        Document(byte[] text, long sequence, long acceptedNs) {
            this.text = text;
            this.sequence = sequence;
            this.acceptedNs = acceptedNs;
        }
    }

    /** What happened in a second of the wall's clock. */
    private static final class Second {
        final LongAdder accepted = new LongAdder();
        final LongAdder delivered = new LongAdder();
        final LongAdder forwards = new LongAdder();
        final LongAdder reads = new LongAdder();
        /** Deliveries by the time since they were accepted, in microseconds. Guarded by itself. */
        final Map<Long, int[]> latency = new HashMap<>();
    }

    private static Second now() {
        return SECONDS.computeIfAbsent(System.currentTimeMillis() / 1000, key -> new Second());
    }

    /** A bounded buffer whose writers wait in turn, each for so long, without a thread. */
    private static final class Buffer {
        private static final class Writer {
            final List<Document> documents;
            final Consumer<Boolean> then;
            ScheduledFuture<?> timeout;

            Writer(List<Document> documents, Consumer<Boolean> then) {
                this.documents = documents;
                this.then = then;
            }
        }

        private final int capacity;
        private final ArrayDeque<Document> queue = new ArrayDeque<>();
        private final ArrayDeque<Writer> writers = new ArrayDeque<>();
        private boolean open;

        Buffer(int capacity) {
            this.capacity = capacity;
        }

        /** All of them, now or once there is room; `then` hears whether they are in it. */
        Writer write(List<Document> documents, long timeoutNs, Consumer<Boolean> then) {
            Writer writer = new Writer(documents, then);
            synchronized (this) {
                if (!writers.isEmpty() || !fits(documents)) {
                    writers.add(writer);
                    writer.timeout = LOOPS.schedule(() -> withdraw(writer), timeoutNs, TimeUnit.NANOSECONDS);
                    return writer;
                }
                enter(documents);
            }
            then.accept(true);
            return writer;
        }

        /** A writer that did not get in yet does not wait any more. */
        void withdraw(Writer writer) {
            boolean was;
            synchronized (this) {
                was = writers.remove(writer);
            }
            if (was) {
                writer.then.accept(false);
                admit();
            }
        }

        /** Whether so many could ever be in it. */
        boolean isLargeEnough(int documents) {
            return documents <= capacity || open;
        }

        /** Nobody reads any more: what comes is not refused for want of room. */
        void open() {
            synchronized (this) {
                open = true;
                notifyAll();
            }
            admit();
        }

        /** A batch, once it is full or the time is over. Without a delay it is what is there once the first one is. */
        List<Document> take(int most, long delayNs) {
            List<Document> found = new ArrayList<>(most);
            long until = System.nanoTime() + (delayNs > 0 ? delayNs : FIRST_WAIT_NS);
            while (true) {
                synchronized (this) {
                    for (Document next = poll(found, most); next != null; next = poll(found, most)) {
                        found.add(next);
                    }
                    long left = until - System.nanoTime();
                    boolean enough = found.size() >= most || delayNs == 0 && !found.isEmpty();
                    if (writers.isEmpty()) {
                        if (enough || left <= 0 || halted) {
                            return found;
                        }
                        pause(left);
                    } else if (!fits(writers.peek().documents) && (enough || left <= 0 || halted)) {
                        return found;
                    }
                }
                admit();
                if (found.size() >= most) {
                    return found;
                }
            }
        }

        private Document poll(List<Document> found, int most) {
            return found.size() < most ? queue.poll() : null;
        }

        private void pause(long ns) {
            try {
                TimeUnit.NANOSECONDS.timedWait(this, Math.max(1, ns));
            } catch (InterruptedException interrupted) {
                Thread.currentThread().interrupt();
            }
        }

        private boolean fits(List<Document> documents) {
            return open || queue.size() + documents.size() <= capacity;
        }

        private void enter(List<Document> documents) {
            queue.addAll(documents);
            notifyAll();
        }

        private void admit() {
            List<Writer> in = new ArrayList<>();
            synchronized (this) {
                while (!writers.isEmpty() && fits(writers.peek().documents)) {
                    Writer writer = writers.poll();
                    writer.timeout.cancel(false);
                    enter(writer.documents);
                    in.add(writer);
                }
            }
            in.forEach(writer -> writer.then.accept(true));
        }

        synchronized List<Document> contents() {
            return new ArrayList<>(queue);
        }
    }

    /** Which documents were delivered, by their numbers, and which more than once. */
    private static final class Ledger {
        private final BitSet delivered = new BitSet();
        private final BitSet again = new BitSet();

        void deliver(Collection<Document> documents) {
            if (documents.isEmpty()) {
                return;
            }
            long now = System.nanoTime();
            Second second = now();
            synchronized (this) {
                for (Document document : documents) {
                    int number = (int) document.sequence;
                    if (delivered.get(number)) {
                        again.set(number);
                    }
                    delivered.set(number);
                }
            }
            synchronized (second.latency) {
                for (Document document : documents) {
                    second.latency.computeIfAbsent(rounded((now - document.acceptedNs) / 1000), key -> new int[1])[0]++;
                }
            }
            second.delivered.add(documents.size());
            DELIVERED.add(documents.size());
        }

        /** Of each number whether it was delivered, whether it was again, and whether it is still inside. */
        synchronized byte[][] told() {
            BitSet inside = new BitSet();
            for (Document document : inside()) {
                inside.set((int) document.sequence);
            }
            return new byte[][] {delivered.toByteArray(), again.toByteArray(), inside.toByteArray()};
        }
    }

    /** To 7 bits: less than 1% too low. */
    private static long rounded(long value) {
        int shift = Math.max(0, 57 - Long.numberOfLeadingZeros(Math.max(1, value)));
        return value >> shift << shift;
    }

    /** Another node: what waits for it, and the connections to it. */
    private static final class Peer {
        final InetSocketAddress address;
        final String name;
        private final ArrayDeque<Document> queue = new ArrayDeque<>();
        private final ArrayDeque<Connection> idle = new ArrayDeque<>();
        private long flushedNs = System.nanoTime();
        volatile boolean found;

        Peer(String name) {
            int colon = name.lastIndexOf(':');
            this.name = name;
            this.address = new InetSocketAddress(name.substring(0, colon), Integer.parseInt(name.substring(colon + 1)));
        }

        /** Whether it waits here for its batch; without room it is processed locally. */
        synchronized boolean add(Document document) {
            // forwarding_batch_queue_depth is 1.
            if (queue.size() >= FORWARDING_BATCH_SIZE * WORKERS) {
                return false;
            }
            queue.add(document);
            return true;
        }

        /** The next batch that is due; empty when there is none. */
        synchronized List<Document> due() {
            long now = System.nanoTime();
            if (queue.size() < FORWARDING_BATCH_SIZE && now - flushedNs < FORWARDING_BATCH_TIMEOUT_NS) {
                return List.of();
            }
            flushedNs = now;
            List<Document> batch = new ArrayList<>();
            while (batch.size() < FORWARDING_BATCH_SIZE && !queue.isEmpty()) {
                batch.add(queue.poll());
            }
            return batch;
        }

        synchronized List<Document> contents() {
            return new ArrayList<>(queue);
        }

        /** Tries until there is a connection, as long as it takes. */
        void find() {
            connect(connection -> {
                if (connection == null) {
                    LOOPS.schedule(this::find, 100, TimeUnit.MILLISECONDS);
                } else {
                    found = true;
                    put(connection);
                }
            });
        }

        void send(Exchange exchange) {
            Connection kept;
            synchronized (idle) {
                do {
                    kept = idle.poll();
                } while (kept != null && !kept.context.channel().isActive());
            }
            if (kept != null) {
                exchange.begin(kept);
                return;
            }
            connect(made -> {
                if (made == null) {
                    exchange.end(0);
                } else {
                    exchange.begin(made);
                }
            });
        }

        void put(Connection connection) {
            synchronized (idle) {
                idle.push(connection);
            }
        }

        /** A new connection; null: there is none. */
        private void connect(Consumer<Connection> then) {
            Connection made = new Connection();
            ChannelFuture connecting = new Bootstrap()
                .group(LOOPS)
                .channel(NioSocketChannel.class)
                .option(ChannelOption.TCP_NODELAY, true)
                .option(ChannelOption.CONNECT_TIMEOUT_MILLIS, (int) Math.min(Integer.MAX_VALUE, Math.max(1, CLIENT_TIMEOUT_NS / 1_000_000)))
                .handler(new ChannelInitializer<SocketChannel>() {
                    @Override
                    protected void initChannel(SocketChannel channel) {
                        channel.pipeline().addLast(new HttpClientCodec(), new HttpObjectAggregator(1 << 20), made);
                    }
                })
                .connect(address);
            connecting.addListener((ChannelFutureListener) done -> then.accept(done.isSuccess() ? made : null));
        }
    }

    /** A batch that goes to a peer, until its answer, or until there is none. */
    private static final class Exchange {
        private final Peer peer;
        private final List<Document> documents;
        private final Consumer<Integer> then;
        private final AtomicBoolean ended = new AtomicBoolean();
        private volatile Connection connection;
        private volatile ScheduledFuture<?> timeout;

        Exchange(Peer peer, List<Document> documents, Consumer<Integer> then) {
            this.peer = peer;
            this.documents = documents;
            this.then = then;
        }

        void begin(Connection on) {
            connection = on;
            on.exchange = this;
            timeout = LOOPS.schedule(() -> end(0), CLIENT_TIMEOUT_NS, TimeUnit.NANOSECONDS);
            FullHttpRequest request = new DefaultFullHttpRequest(HttpVersion.HTTP_1_1, HttpMethod.POST, "/forward", packed(documents));
            request.headers().set(HttpHeaderNames.HOST, peer.name);
            request.headers().set(HttpHeaderNames.CONTENT_TYPE, "application/octet-stream");
            request.headers().setInt(HttpHeaderNames.CONTENT_LENGTH, request.content().readableBytes());
            on.context.writeAndFlush(request).addListener((ChannelFutureListener) written -> {
                if (!written.isSuccess()) {
                    end(0);
                }
            });
        }

        /** The status of the answer; 0: there was none. */
        void end(int status) {
            if (!ended.compareAndSet(false, true)) {
                return;
            }
            if (timeout != null) {
                timeout.cancel(false);
            }
            if (connection != null) {
                connection.exchange = null;
                if (status == 0) {
                    // It may have been taken.
                    UNSURE.add(documents.size());
                    connection.context.close();
                } else {
                    peer.put(connection);
                }
            }
            then.accept(status);
        }
    }

    /** A connection to a peer, on which one batch at a time is under way. */
    private static final class Connection extends SimpleChannelInboundHandler<FullHttpResponse> {
        private volatile ChannelHandlerContext context;
        private volatile Exchange exchange;

        @Override
        public void handlerAdded(ChannelHandlerContext added) {
            context = added;
        }

        @Override
        protected void channelRead0(ChannelHandlerContext from, FullHttpResponse answer) {
            Exchange its = exchange;
            if (its != null) {
                // Who answers nonsense may have taken it.
                its.end(answer.decoderResult().isSuccess() ? answer.status().code() : 0);
            }
        }

        @Override
        public void channelInactive(ChannelHandlerContext from) {
            Exchange its = exchange;
            if (its != null) {
                its.end(0);
            }
        }

        @Override
        public void exceptionCaught(ChannelHandlerContext from, Throwable cause) {
            if (!(cause instanceof java.io.IOException)) {
                cause.printStackTrace();
            }
            from.close();
        }
    }

    public static void main(String[] arguments) {
        Answers.start(Forwarder::serve);
    }

    private static void serve() throws Exception {
        new ServerBootstrap()
            .group(LOOPS)
            .channel(NioServerSocketChannel.class)
            .option(ChannelOption.SO_REUSEADDR, true)
            .option(ChannelOption.SO_BACKLOG, 1024)
            .childOption(ChannelOption.TCP_NODELAY, true)
            .childHandler(new ChannelInitializer<SocketChannel>() {
                @Override
                protected void initChannel(SocketChannel channel) {
                    channel.pipeline().addLast(new HttpServerCodec(), new HttpObjectAggregator(LARGEST_BODY), new Requests());
                }
            })
            .bind(HOST, PORT).sync();
        for (int place = 0; place < NODES.length; place++) {
            if (place != NODE) {
                PEERS[place] = new Peer(NODES[place]);
                PEERS[place].find();
            }
        }
        for (int number = 0; number < WORKERS; number++) {
            Thread thread = new Thread(Forwarder::work, "worker-" + number);
            thread.setUncaughtExceptionHandler((ended, error) -> {
                error.printStackTrace();
                System.exit(1);
            });
            THREADS.add(thread);
            thread.start();
        }
        System.out.println("forwarder: node " + (NODE + 1) + " of " + NODES.length + " listens on " + HOST + ":" + PORT);
    }

    /** The rounds of a worker: from the source to the owners, and from the receive buffer on. */
    private static void work() {
        boolean hurry = false;
        while (!halted) {
            List<Document> mine = new ArrayList<>();
            for (Document document : SOURCE.take(SOURCE_BATCH_SIZE, 0)) {
                Peer owner = PEERS[owner(document)];
                if (owner == null || !owner.add(document)) {
                    mine.add(document);
                }
            }
            forward();
            KEPT.add(mine.size());
            List<Document> received = RECEIVE.take(BATCH_SIZE, hurry ? 0 : BATCH_DELAY_NS);
            READS.increment();
            now().reads.increment();
            hurry = ADAPTIVE && received.size() >= (BATCH_SIZE + 1) / 2;
            mine.addAll(received);
            LEDGER.deliver(mine);
        }
    }

    private static int owner(Document document) {
        byte[] key = KEY.equals(SEQUENCE) ? Long.toString(document.sequence).getBytes(StandardCharsets.US_ASCII) : field(document.text, KEY);
        return key == null ? NODE : Math.floorMod(mixed(key), NODES.length);
    }

    /** FNV-1a, its bits mixed once more (the finalizer of MurmurHash3): numbers in a row are spread, too. */
    private static int mixed(byte[] key) {
        int hash = 0x811c9dc5;
        for (byte next : key) {
            hash = (hash ^ next) * 0x01000193;
        }
        hash = (hash ^ hash >>> 16) * 0x85ebca6b;
        hash = (hash ^ hash >>> 13) * 0xc2b2ae35;
        return hash ^ hash >>> 16;
    }

    /** Each batch that is due goes out; blocking: and has its answer. */
    private static void forward() {
        List<CountDownLatch> answers = new ArrayList<>();
        for (Peer peer : PEERS) {
            if (peer == null) {
                continue;
            }
            for (List<Document> batch = peer.due(); !batch.isEmpty(); batch = peer.due()) {
                CountDownLatch answered = new CountDownLatch(1);
                answers.add(answered);
                send(peer, batch, answered);
            }
        }
        if (BLOCKING) {
            answers.forEach(Forwarder::await);
        }
    }

    private static void await(CountDownLatch answered) {
        try {
            answered.await();
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    private static void send(Peer peer, List<Document> batch, CountDownLatch answered) {
        CLIENTS.acquireUninterruptibly();
        IN_FLIGHT.incrementAndGet();
        peer.send(new Exchange(peer, batch, status -> {
            CLIENTS.release();
            if (status == 200) {
                FORWARDS.increment();
                now().forwards.increment();
                FORWARDED.add(batch.size());
                IN_FLIGHT.decrementAndGet();
                answered.countDown();
            } else {
                FORWARDS_FAILED.increment();
                keep(batch, answered);
            }
        }));
    }

    /** What a peer did not take is processed here, or dropped. */
    private static void keep(List<Document> batch, CountDownLatch answered) {
        Consumer<Boolean> then = isIn -> {
            (isIn ? RETURNED : DROPPED).add(batch.size());
            IN_FLIGHT.decrementAndGet();
            answered.countDown();
        };
        if (RECEIVE.isLargeEnough(batch.size())) {
            RECEIVE.write(batch, LOCAL_WRITE_TIMEOUT_NS, then);
        } else {
            then.accept(false);
        }
    }

    /** What is in no buffer of a peer's and not delivered, once nobody works any more. */
    private static List<Document> inside() {
        List<Document> found = new ArrayList<>(SOURCE.contents());
        found.addAll(RECEIVE.contents());
        for (Peer peer : PEERS) {
            if (peer != null) {
                found.addAll(peer.contents());
            }
        }
        return found;
    }

    /** Requests of clients and of peers, one after the other on each connection. */
    private static final class Requests extends SimpleChannelInboundHandler<FullHttpRequest> {
        private Runnable gone = () -> { };

        @Override
        protected void channelRead0(ChannelHandlerContext context, FullHttpRequest request) {
            boolean alive = HttpUtil.isKeepAlive(request);
            if (request.method() == HttpMethod.POST) {
                post(context, request, alive);
                return;
            }
            switch (request.uri()) {
                case "/":
                    Answers.respond(context, alive, HttpResponseStatus.OK, request.method() == HttpMethod.HEAD ? "" : about());
                    break;
                case "/_count":
                    Answers.respond(context, alive, HttpResponseStatus.OK, "{\"count\":" + ACCEPTED.sum() + "}");
                    break;
                case "/_peers":
                    Answers.respond(context, alive, HttpResponseStatus.OK, peers());
                    break;
                case "/_work":
                    Answers.respond(context, alive, HttpResponseStatus.OK, underWay());
                    break;
                case "/_counters":
                    Answers.respond(context, alive, HttpResponseStatus.OK, counters());
                    break;
                case "/_delivered":
                    Answers.respond(context, alive, HttpResponseStatus.OK, framed(LEDGER.told()), "application/octet-stream");
                    break;
                default:
                    Answers.respond(context, alive, HttpResponseStatus.NOT_FOUND, "{\"status\":404}");
            }
        }

        private void post(ChannelHandlerContext context, FullHttpRequest request, boolean alive) {
            byte[] body = new byte[request.content().readableBytes()];
            request.content().readBytes(body);
            switch (request.uri()) {
                case "/records":
                    List<Document> accepted;
                    try {
                        accepted = array(body);
                    } catch (IllegalArgumentException error) {
                        Answers.respond(context, alive, HttpResponseStatus.BAD_REQUEST, error.getMessage());
                        return;
                    }
                    write(context, alive, SOURCE, accepted, ACCEPTED, REFUSED);
                    break;
                case "/forward":
                    write(context, alive, RECEIVE, unpacked(body), RECEIVED, null);
                    break;
                case "/_halt":
                    halted = true;
                    RECEIVE.open();
                    Answers.respond(context, alive, HttpResponseStatus.OK, underWay());
                    break;
                default:
                    Answers.respond(context, alive, HttpResponseStatus.NOT_FOUND, "{\"status\":404}");
            }
        }

        private void write(ChannelHandlerContext context, boolean alive, Buffer buffer, List<Document> documents, LongAdder in, LongAdder out) {
            if (!buffer.isLargeEnough(documents.size())) {
                Answers.respond(context, alive, HttpResponseStatus.REQUEST_ENTITY_TOO_LARGE, "the buffer is smaller than these " + documents.size());
                return;
            }
            Buffer.Writer writer = buffer.write(documents, WRITE_TIMEOUT_NS, isIn -> {
                if (isIn) {
                    in.add(documents.size());
                    if (buffer == SOURCE) {
                        now().accepted.add(documents.size());
                    }
                } else if (out != null) {
                    out.add(documents.size());
                }
                Answers.respond(context, alive, isIn ? HttpResponseStatus.OK : HttpResponseStatus.REQUEST_TIMEOUT, isIn ? "" : "the buffer is full");
            });
            if (buffer == SOURCE) {
                // A client that has gone would not hear that it is in. Of a peer it is taken all the same, as Data Prepper does.
                gone = () -> buffer.withdraw(writer);
            }
        }

        @Override
        public void channelInactive(ChannelHandlerContext context) {
            gone.run();
        }

        @Override
        public void exceptionCaught(ChannelHandlerContext context, Throwable cause) {
            if (!(cause instanceof java.io.IOException)) {
                cause.printStackTrace();
            }
            context.close();
        }
    }

    /** The documents of a JSON array of objects, each with its number. IllegalArgumentException says what is wrong. */
    private static List<Document> array(byte[] body) {
        long now = System.nanoTime();
        List<Document> found = new ArrayList<>();
        int at = blank(body, 0);
        if (at >= body.length || body[at] != '[') {
            throw new IllegalArgumentException("not a JSON array");
        }
        at = blank(body, at + 1);
        while (at < body.length && body[at] != ']') {
            int end = value(body, at);
            byte[] text = java.util.Arrays.copyOfRange(body, at, end);
            found.add(new Document(text, number(field(text, SEQUENCE)), now));
            at = blank(body, end);
            if (at < body.length && body[at] == ',') {
                at = blank(body, at + 1);
            }
        }
        if (at >= body.length) {
            throw new IllegalArgumentException("a JSON array without its end");
        }
        return found;
    }

    private static long number(byte[] text) {
        try {
            long number = Long.parseLong(new String(text == null ? new byte[0] : text, StandardCharsets.US_ASCII));
            if (number < 0 || number > Integer.MAX_VALUE) {
                throw new IllegalArgumentException("a document whose number has more than 31 bits");
            }
            return number;
        } catch (NumberFormatException error) {
            throw new IllegalArgumentException("a document without a number: \"" + SEQUENCE + "\":\"0000000042\"");
        }
    }

    /** The value of an object's own field as it is written, a text without its quotes; null: there is none. */
    private static byte[] field(byte[] text, String name) {
        int at = blank(text, 1);
        while (at < text.length && text[at] == '"') {
            int keyEnd = value(text, at);
            boolean wanted = keyEnd - at - 2 == name.length() && matches(text, at + 1, name);
            at = blank(text, keyEnd);
            at = blank(text, at + 1);
            int end = value(text, at);
            if (wanted) {
                boolean quoted = text[at] == '"';
                return java.util.Arrays.copyOfRange(text, quoted ? at + 1 : at, quoted ? end - 1 : end);
            }
            at = blank(text, end);
            if (at < text.length && text[at] == ',') {
                at = blank(text, at + 1);
            }
        }
        return null;
    }

    private static boolean matches(byte[] text, int at, String name) {
        for (int place = 0; place < name.length(); place++) {
            if (text[at + place] != name.charAt(place)) {
                return false;
            }
        }
        return true;
    }

    private static int blank(byte[] text, int from) {
        int at = from;
        while (at < text.length && (text[at] == ' ' || text[at] == '\n' || text[at] == '\r' || text[at] == '\t')) {
            at++;
        }
        return at;
    }

    /** Where the value that begins here ends. */
    private static int value(byte[] text, int from) {
        int depth = 0;
        boolean inText = false;
        for (int at = from; at < text.length; at++) {
            byte next = text[at];
            if (inText) {
                if (next == '\\') {
                    at++;
                } else if (next == '"') {
                    inText = false;
                    if (depth == 0) {
                        return at + 1;
                    }
                }
            } else if (next == '"') {
                inText = true;
            } else if (next == '{' || next == '[') {
                depth++;
            } else if (next == '}' || next == ']') {
                if (depth == 0) {
                    return at;
                }
                depth--;
                if (depth == 0) {
                    return at + 1;
                }
            } else if (next == ',' && depth == 0) {
                return at;
            }
        }
        throw new IllegalArgumentException("JSON that ends in the middle of a value");
    }

    /** A batch as one node sends it to another: number, moment, length and text of each document. */
    private static ByteBuf packed(List<Document> documents) {
        int size = 0;
        for (Document document : documents) {
            size += 20 + document.text.length;
        }
        ByteBuf body = Unpooled.buffer(size, size);
        for (Document document : documents) {
            body.writeLong(document.sequence).writeLong(document.acceptedNs).writeInt(document.text.length).writeBytes(document.text);
        }
        return body;
    }

    private static List<Document> unpacked(byte[] body) {
        ByteBuf from = Unpooled.wrappedBuffer(body);
        List<Document> found = new ArrayList<>();
        while (from.isReadable()) {
            long sequence = from.readLong();
            long acceptedNs = from.readLong();
            byte[] text = new byte[from.readInt()];
            from.readBytes(text);
            found.add(new Document(text, sequence, acceptedNs));
        }
        return found;
    }

    /** Each with its length before it. */
    private static ByteBuf framed(byte[][] parts) {
        ByteBuf body = Unpooled.buffer();
        for (byte[] part : parts) {
            body.writeLongLE(part.length).writeBytes(part);
        }
        return body;
    }

    private static String peers() {
        StringBuilder missing = new StringBuilder();
        for (int place = 0; place < PEERS.length; place++) {
            if (PEERS[place] != null && !PEERS[place].found) {
                missing.append(missing.length() == 0 ? "" : ",").append(place + 1);
            }
        }
        return "{\"missing\":[" + missing + "]}";
    }

    private static String underWay() {
        long workers = THREADS.stream().filter(Thread::isAlive).count();
        return "{\"workers\":" + workers + ",\"in_flight\":" + IN_FLIGHT.get() + "}";
    }

    private static String counters() {
        StringBuilder seconds = new StringBuilder();
        StringBuilder latency = new StringBuilder();
        for (Map.Entry<Long, Second> entry : SECONDS.entrySet()) {
            Second second = entry.getValue();
            String comma = seconds.length() == 0 ? "" : ",";
            seconds.append(comma).append('"').append(entry.getKey()).append("\":{\"accepted\":").append(second.accepted.sum())
                .append(",\"delivered\":").append(second.delivered.sum()).append(",\"forwards\":").append(second.forwards.sum())
                .append(",\"reads\":").append(second.reads.sum()).append('}');
            latency.append(comma).append('"').append(entry.getKey()).append("\":{");
            synchronized (second.latency) {
                Iterator<Map.Entry<Long, int[]>> each = second.latency.entrySet().iterator();
                while (each.hasNext()) {
                    Map.Entry<Long, int[]> one = each.next();
                    latency.append('"').append(one.getKey()).append("\":").append(one.getValue()[0]).append(each.hasNext() ? "," : "");
                }
            }
            latency.append('}');
        }
        return "{\"accepted\":" + ACCEPTED.sum() + ",\"refused\":" + REFUSED.sum() + ",\"kept\":" + KEPT.sum() + ",\"forwarded\":"
            + FORWARDED.sum() + ",\"received\":" + RECEIVED.sum() + ",\"returned\":" + RETURNED.sum() + ",\"unsure\":" + UNSURE.sum()
            + ",\"delivered\":" + DELIVERED.sum() + ",\"dropped\":" + DROPPED.sum() + ",\"inside\":" + inside().size() + ",\"forwards\":"
            + FORWARDS.sum() + ",\"forwards_failed\":" + FORWARDS_FAILED.sum() + ",\"receive_reads\":" + READS.sum()
            + ",\"seconds\":{" + seconds + "},\"latency_us\":{" + latency + "}}";
    }

    private static String about() {
        return "{\"name\":\"forwarder\",\"version\":{\"number\":\"" + System.getProperty("java.version") + "\"}," + Answers.jvm()
            + ",\"nodes\":" + NODES.length + ",\"workers\":" + WORKERS
            + ",\"source_buffer_size\":" + SOURCE_BUFFER_SIZE + ",\"source_batch_size\":" + SOURCE_BATCH_SIZE + ",\"batch_size\":"
            + BATCH_SIZE + ",\"batch_delay_ns\":" + BATCH_DELAY_NS + ",\"buffer_size\":" + BUFFER_SIZE + ",\"forwarding_batch_size\":"
            + FORWARDING_BATCH_SIZE + ",\"forwarding_batch_timeout_ns\":" + FORWARDING_BATCH_TIMEOUT_NS + ",\"client_thread_count\":"
            + CLIENT_THREAD_COUNT + ",\"client_timeout_ns\":" + CLIENT_TIMEOUT_NS + ",\"request_timeout_ns\":" + REQUEST_TIMEOUT_NS
            + ",\"waiting\":\"" + (BLOCKING ? "blocking" : "asynchronous") + "\",\"receive_delay\":\"" + (ADAPTIVE ? "adaptive" : "fixed")
            + "\",\"key\":\"" + KEY + "\"}";
    }

    private Forwarder() {
    }
}
