package org.apache.lucene.index;

/** Stands for Lucene's: it is busy in methods of these names. */
public final class DocumentsWriterPerThread {
  static volatile double kept;

  private DocumentsWriterPerThread() {}

  public static void flush(long milliseconds) {
    spin(milliseconds);
  }

  public static void index(long milliseconds) {
    spin(milliseconds);
  }

  private static void spin(long milliseconds) {
    long until = System.nanoTime() + milliseconds * 1_000_000;
    while (System.nanoTime() < until) {
      for (int i = 0; i < 1000; i++) {
        kept = Math.sqrt(kept + i);
      }
    }
  }
}
