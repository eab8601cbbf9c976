package io.netty.pretend;

/** Allocates as the network layer would: its frame is the first that is not the JDK's. */
public final class Buffers {
  public static byte[] take(int bytes) {
    return new byte[bytes];
  }

  private Buffers() {}
}
