import io.netty.bootstrap.ServerBootstrap;
import io.netty.buffer.ByteBuf;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInitializer;
import io.netty.channel.SimpleChannelInboundHandler;
import io.netty.channel.nio.NioEventLoopGroup;
import io.netty.channel.socket.SocketChannel;
import io.netty.channel.socket.nio.NioServerSocketChannel;
import io.netty.handler.codec.LengthFieldBasedFrameDecoder;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.util.Scanner;
import java.util.concurrent.atomic.LongAdder;

/** Counts frames behind a length of four bytes, and acknowledges each with one byte: HOST PORT COUNT_PORT. */
public class NettyFrames {
    static final LongAdder DOCUMENTS = new LongAdder();

    static class Counter extends SimpleChannelInboundHandler<ByteBuf> {
        @Override
        protected void channelRead0(ChannelHandlerContext context, ByteBuf document) {
            DOCUMENTS.increment();
            context.write(context.alloc().buffer(1).writeByte(6), context.voidPromise());
        }

        @Override
        public void channelReadComplete(ChannelHandlerContext context) {
            context.flush();
        }
    }

    public static void main(String[] arguments) throws Exception {
        new ServerBootstrap()
                .group(new NioEventLoopGroup())
                .channel(NioServerSocketChannel.class)
                .childHandler(new ChannelInitializer<SocketChannel>() {
                    @Override
                    protected void initChannel(SocketChannel channel) {
                        channel.pipeline().addLast(new LengthFieldBasedFrameDecoder(100 << 20, 0, 4, 0, 4), new Counter());
                    }
                })
                .bind(arguments[0], Integer.parseInt(arguments[1]))
                .sync();
        InetAddress address = InetAddress.getByName(arguments[0]);
        try (var server = new ServerSocket(Integer.parseInt(arguments[2]), 50, address)) {
            while (true) {
                try (var client = server.accept(); var request = new Scanner(client.getInputStream())) {
                    while (!request.nextLine().isEmpty()) {}
                    String body = "{\"documents\":" + DOCUMENTS + "}";
                    String head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: " + body.length() + "\r\n\r\n";
                    client.getOutputStream().write((head + body).getBytes());
                }
            }
        }
    }
}
