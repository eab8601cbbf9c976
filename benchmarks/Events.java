import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;

/** Events in number: "reads N" reads a socket N times and says the peer's port, "allocations N" takes N arrays. */
public final class Events {
    private static final int READ_BYTES = 64;
    static Object kept;

    public static void main(String[] arguments) throws Exception {
        int count = Integer.parseInt(arguments[1]);
        if (arguments[0].equals("reads")) {
            reads(count);
        } else {
            for (int i = 0; i < count; i++) {
                kept = take(i % 8, i % 4);
            }
        }
    }

    /** A stack of a server's depth, that differs with `kind`. */
    private static byte[] take(int depth, int kind) {
        if (depth < 30) {
            return take(depth + 1, kind);
        }
        switch (kind) {
            case 0:
                return new byte[2000];
            case 1:
                return new byte[4000];
            case 2:
                return new byte[8000];
            default:
                return new byte[16000];
        }
    }

    private static void reads(int count) throws Exception {
        ServerSocketChannel server = ServerSocketChannel.open().bind(new InetSocketAddress("127.0.0.1", 0));
        Thread sender = new Thread(() -> send((InetSocketAddress) server.socket().getLocalSocketAddress(), count));
        sender.start();
        try (SocketChannel channel = server.accept()) {
            System.out.println("port=" + ((InetSocketAddress) channel.getRemoteAddress()).getPort());
            ByteBuffer buffer = ByteBuffer.allocateDirect(READ_BYTES);
            while (channel.read(buffer) >= 0) {
                buffer.clear();
            }
        }
        sender.join();
    }

    private static void send(InetSocketAddress address, int count) {
        try (SocketChannel channel = SocketChannel.open(address)) {
            ByteBuffer block = ByteBuffer.allocateDirect(READ_BYTES << 10);
            for (long left = (long) count * READ_BYTES; left > 0; left -= block.limit()) {
                block.clear().limit((int) Math.min(left, block.capacity()));
                while (block.hasRemaining()) {
                    channel.write(block);
                }
            }
        } catch (IOException problem) {
            throw new java.io.UncheckedIOException(problem);
        }
    }
}
