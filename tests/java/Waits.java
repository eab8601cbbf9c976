/** A JVM that does nothing until it is killed. */
public final class Waits {
  public static void main(String[] arguments) throws InterruptedException {
    Thread.sleep(Long.MAX_VALUE);
  }
}
