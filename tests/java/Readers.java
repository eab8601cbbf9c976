import java.io.OutputStream;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;

/**
 * Ground truth: reads WRITES writes of 100 bytes from a client of its own, 64 bytes at a time, and says how many reads
 * and bytes that were. Then it ends ("exit") or says "ready" and waits ("wait"). A few collections happen on the way.
 */
public final class Readers {
  static Object garbage;

  public static void main(String[] arguments) throws Exception {
    int writes = Integer.parseInt(arguments[0]);
    ServerSocketChannel server = ServerSocketChannel.open().bind(new InetSocketAddress("127.0.0.1", 0));
    int port = ((InetSocketAddress) server.getLocalAddress()).getPort();
    Thread client = new Thread(() -> send(port, writes));
    client.start();
    SocketChannel channel = server.accept();
    channel.configureBlocking(false);
    Selector selector = Selector.open();
    channel.register(selector, SelectionKey.OP_READ);
    ByteBuffer buffer = ByteBuffer.allocateDirect(64);
    long reads = 0;
    long bytes = 0;
    for (int got = 0; got >= 0; ) {
      selector.select();
      selector.selectedKeys().clear();
      buffer.clear();
      got = channel.read(buffer);
      if (got > 0) {
        reads++;
        bytes += got;
      }
    }
    for (int i = 0; i < 5000; i++) {
      garbage = new byte[1 << 16];
    }
    int peer = ((InetSocketAddress) channel.getRemoteAddress()).getPort();
    System.out.println("reads=" + reads + " bytes=" + bytes + " port=" + peer);
    System.gc();
    if (arguments[1].equals("wait")) {
      System.out.println("ready");
      Thread.sleep(600_000);
    }
  }

  private static void send(int port, int writes) {
    try (Socket socket = new Socket("127.0.0.1", port)) {
      OutputStream out = socket.getOutputStream();
      byte[] body = new byte[100];
      for (int i = 0; i < writes; i++) {
        out.write(body);
      }
    } catch (java.io.IOException problem) {
      throw new java.io.UncheckedIOException(problem);
    }
  }
}
